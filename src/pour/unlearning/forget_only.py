"""The base of methods that train on forget images alone, and the accuracy on these images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F

from pour.data.classes import resolve_classes
from pour.data.samples import checked_batch
from pour.errors import DivergenceError
from pour.models.card import names_of_scores
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.models.unwrap import unwrap
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.request import Need
from pour.unlearning.toolkit.anchors import anchor_kind, with_copies
from pour.unlearning.toolkit.features import is_among
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import Tensor, nn

    from pour.training.loop import Epochs, TrainingLog
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["ForgetOnlyMethod", "forget_accuracy", "forgotten_classes", "masked_divergence", "requested_classes"]


@dataclass(kw_only=True)
class ForgetOnlyMethod(IterativeMethod):
    """A method that trains on forget images, with the defaults of DELETE's published CIFAR-10 configurations.

    These configurations have one setting for every method: SGD with momentum 0.9 at a constant 1e-4 (5e-5 on
    CIFAR-100), batches of 128, 20 epochs, no weight decay. In them, the statistics of BatchNorm follow the forget
    images, which costs each method several points of accuracy. Here the statistics are frozen unless
    `batch_norm="train"`.

    With `anchor="views"` the loss has a second term on transformed copies of the forget images. Without it no copies
    are made, and no random numbers are drawn for them.
    """

    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "20 epochs of forget images"
    newer_options: ClassVar[dict[str, Any]] = {"anchor": "none", "anchor_weight": 1.0}

    epochs: int | None = option(20, "Number of passes over the forget images; set these or steps.")
    anchor: Literal["none", "views"] = option(
        "none", "Anchors: none, or views (two transformed copies per forget image, where the network must not change)."
    )
    anchor_weight: float = option(1.0, "Weight of the loss on the anchors.", above=0)

    def train_on_forget(
        self,
        model: nn.Module,
        objective: Callable[..., Tensor],
        request: Granted,
        run: Run,
        *,
        batches: Epochs | None = None,
        teacher: nn.Module | None = None,
        distance: Callable[..., Tensor] | None = None,
        **changes: Any,
    ) -> TrainingLog:
        """Train `model` on forget images, and on their transformed copies if `anchor` is views.

        Args:
            model: Network to train.
            objective: Loss of a batch, `objective(model, images, labels)`.
            request: Forget images.
            run: Seed and device.
            batches: Batches of forget images; by default shuffled batches of the request.
            teacher: Frozen copy of the original; by default a copy of `model`.
            distance: Loss on copies, `distance(model, copies, labels)`; by default `masked_divergence`.
            changes: Further arguments of `train`.

        Raises:
            UsageError: Copies were requested, and the inputs are not images.
        """
        if batches is None:
            (batches,) = self.loaders(run, request.forget)
        if self.anchor == "none":
            return self.train(model, batches, objective, run, **changes)
        anchor_kind(self.anchor, request)
        if distance is None:
            teacher = frozen_copy(model, run) if teacher is None else teacher
            distance = masked_divergence(teacher, forgotten_classes(teacher, request))

        def anchored(student: nn.Module, images: Tensor, labels: Tensor, copies: Tensor) -> Tensor:
            return objective(student, images, labels) + self.anchor_weight * distance(student, copies, labels)

        return self.train(model, with_copies(batches, run), anchored, run, **changes)


def masked_divergence(teacher: nn.Module, classes: Collection[int]) -> Callable[..., Tensor]:
    """Return the loss KL(p || softmax l_s(x')) of a student on copies x', averaged over images or pixels.

    The target p is the softmax of the teacher's scores without `classes`, as in DELETE. If the student has more
    classes than the teacher, the further scores are ignored.

    Args:
        teacher: Frozen copy of the original.
        classes: Indices of the classes to forget, and of the classes forgotten by earlier requests.
    """

    def distance(student: nn.Module, copies: Tensor, *_: Tensor) -> Tensor:
        with torch.no_grad():
            scores = scores_of(teacher(copies)).float()
            columns = torch.arange(scores.shape[1], device=scores.device).view(-1, *[1] * (scores.ndim - 2))
            target = scores.masked_fill(is_among(columns, classes), -torch.inf).softmax(dim=1)
        answers = scores_of(student(copies)).float()[:, : target.shape[1]]
        return F.kl_div(F.log_softmax(answers, dim=1), target, reduction="none").sum(dim=1).mean()

    return distance


def requested_classes(model: nn.Module, request: Granted) -> tuple[int, ...]:
    """Return the indices of the classes to forget."""
    num_classes = find_head(model).num_classes
    return resolve_classes(request.classes, num_classes=num_classes, class_names=names_of_scores(model, num_classes))


def forgotten_classes(model: nn.Module, request: Granted) -> tuple[int, ...]:
    """Return the indices of the classes to forget and of the classes forgotten by earlier requests, in order."""
    return tuple(sorted({*requested_classes(model, request), *forgotten_before(model)}))


def forget_accuracy(
    model: nn.Module, request: Granted, run: Run, *, batches: Iterable[tuple[Tensor, Tensor]] | None = None
) -> float:
    """Return the share of un-augmented forget images, or of their labelled pixels, that `model` classifies rightly.

    Args:
        model: Classifier or segmentation network.
        request: Forget images.
        run: Device.
        batches: Batches of some of the images; by default all images.

    Raises:
        DivergenceError: The highest score of an image is not finite. Such an image would count as forgotten.
    """
    network = unwrap(model).to(run.torch_device)
    correct = torch.zeros((), dtype=torch.int64, device=run.torch_device)
    total = torch.zeros_like(correct)
    finite = torch.ones_like(correct, dtype=torch.bool)
    with evaluating(network), torch.inference_mode():
        for images, labels in map(checked_batch, request.forget.once(run) if batches is None else batches):
            scores = scores_of(network(to_unit(images.to(run.torch_device))))
            labels = labels.to(run.torch_device)
            correct += (scores.argmax(dim=1) == labels).sum()
            finite &= scores.amax(dim=1).isfinite().all()
            # Void pixels have a negative label.
            total += (labels >= 0).sum()
    if not finite:
        raise DivergenceError("The model's scores are no longer finite; use a smaller learning rate.")
    return int(correct) / max(1, int(total))
