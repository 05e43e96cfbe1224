"""What the methods that train on forget images alone have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pour.data.classes import resolve_classes
from pour.errors import DivergenceError
from pour.models.card import names_of_scores
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import checked_batches, to_unit
from pour.models.unwrap import unwrap
from pour.unlearning.request import Need
from pour.unlearning.toolkit.anchored import AnchoredMethod, masked_divergence
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor, nn

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["ForgetOnlyMethod", "forget_accuracy", "requested_classes"]


@dataclass(kw_only=True)
class ForgetOnlyMethod(AnchoredMethod):
    """A method that trains on forget images; the defaults are those of DELETE's published CIFAR-10 configurations.

    Those use one setting for every method: SGD with momentum 0.9 at a constant 1e-4 (5e-5 on CIFAR-100), batches of
    128, 20 epochs, no weight decay. They let BatchNorm's statistics follow the forget images, which costs every one of
    these methods several points; here they are frozen unless ``batch_norm="train"``.
    """

    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "20 epochs of forget images"

    epochs: int | None = 20
    """Passes over the forget images; give these or steps."""

    def anchored(
        self,
        model: nn.Module,
        request: Granted,
        run: Run,
        batches: Epochs | Any,
        objective: Callable[..., Tensor],
        *,
        teacher: nn.Module | None = None,
    ) -> tuple[Epochs | Any, Callable[..., Tensor]]:
        """Return the batches and the loss with the term on the anchors; both unchanged if ``anchor`` is none.

        Args:
            model: The original, before the first step.
            request: Forget images.
            run: Seed and device.
            batches: Batches of forget images.
            objective: Loss of a batch, ``objective(model, *batch)``.
            teacher: Frozen copy of the original; by default one is made.
        """
        if self.anchor == "none":
            return batches, objective
        classes = {*requested_classes(model, request), *forgotten_before(model)}
        distance = masked_divergence(frozen_copy(model, run) if teacher is None else teacher, classes)
        return self.with_anchors(batches, objective, distance, request, run)


def requested_classes(model: nn.Module, request: Granted) -> tuple[int, ...]:
    """The indices of the classes to forget."""
    num_classes = find_head(model).num_classes
    return resolve_classes(request.classes, num_classes=num_classes, class_names=names_of_scores(model, num_classes))


def forget_accuracy(
    model: nn.Module, request: Granted, run: Run, *, batches: Iterable[tuple[Tensor, Tensor]] | None = None
) -> float:
    """The share of un-augmented forget images, or of their labelled pixels, that ``model`` still classifies so.

    Scores that are not finite are no answer, and would pass for having forgotten.

    Args:
        model: what to look at.
        request: the images.
        run: where to compute.
        batches: only these of the images; by default all.

    Raises:
        DivergenceError: the highest score of some image is not finite.
    """
    network = unwrap(model).to(run.torch_device)
    right = torch.zeros((), dtype=torch.int64, device=run.torch_device)
    counted = torch.zeros_like(right)
    sound = torch.ones_like(right, dtype=torch.bool)
    with evaluating(network), torch.inference_mode():
        for images, labels in checked_batches(request.forget.once(run) if batches is None else batches):
            scores = scores_of(network(to_unit(images.to(run.torch_device))))
            labels = labels.to(run.torch_device)
            right += (scores.argmax(dim=1) == labels).sum()
            sound &= scores.amax(dim=1).isfinite().all()
            # Pixels that count for nothing have a negative label.
            counted += (labels >= 0).sum()
    if not sound:
        raise DivergenceError("The model's scores are no longer finite; use a smaller learning rate.")
    return int(right) / max(1, int(counted))
