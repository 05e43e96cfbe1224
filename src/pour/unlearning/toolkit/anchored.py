"""The option of methods that train on forget images alone to hold the network in place on transformed copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import as_epochs
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.toolkit.views import has_views, transformed_copies

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch import Tensor, nn

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["AnchoredMethod", "WithCopies", "masked_divergence"]

_COPIES_PER_IMAGE = 2
# Seeds of the copies must differ from those of the loader that shuffles the images.
_SALT = 23


@dataclass(kw_only=True)
class AnchoredMethod(IterativeMethod):
    """A method on forget images whose loss can have a second term, on transformed copies of those images.

    Without the term, no copies are made and no random numbers are drawn for them.
    """

    newer_options: ClassVar[dict[str, Any]] = {"anchor": "none", "anchor_weight": 1.0}

    anchor: Literal["none", "views"] = "none"
    """Anchors: none, or views (two transformed copies per forget image, on which the network must stay as it was)."""
    anchor_weight: float = 1.0
    """Weight of the loss on the anchors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor not in ("none", "views"):
            raise UsageError(f"anchor is {self.anchor!r}; choose none or views.")
        if self.anchor_weight <= 0:
            raise UsageError(f"anchor_weight must be above 0, but is {self.anchor_weight}.")

    def with_anchors(
        self,
        batches: Epochs | Any,
        objective: Callable[..., Tensor],
        distance: Callable[[nn.Module, Tensor], Tensor],
        request: Granted,
        run: Run,
    ) -> tuple[Epochs | Any, Callable[..., Tensor]]:
        """Return the batches and the loss with the term on the anchors; both unchanged if ``anchor`` is none.

        Args:
            batches: Batches of forget images.
            objective: Loss of a batch, ``objective(model, *batch)``.
            distance: Loss on copies, ``distance(model, copies)``.
            request: Forget images.
            run: Seed and device.

        Raises:
            UsageError: The inputs are not images.
        """
        if self.anchor == "none":
            return batches, objective
        images = request.forget.few(run)
        if not has_views(images):
            raise UsageError(
                f'anchor="views" transforms images, but {self.name} got inputs of shape {tuple(images.shape[1:])} and '
                f'type {images.dtype}; leave anchor="none".'
            )

        def anchored(student: nn.Module, *batch: Tensor) -> Tensor:
            *parts, copies = batch
            return objective(student, *parts) + self.anchor_weight * distance(student, copies)

        return WithCopies(as_epochs(batches, run), run), anchored


class WithCopies:
    """Batches of images, each followed by twice as many transformed copies of its images.

    The copies are made here and not in the loss, because a step that is captured in a graph would repeat its draws.
    """

    def __init__(self, batches: Epochs, run: Run) -> None:
        self._batches = batches
        self._run = run

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self._batches)

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """Yield the batches of epoch ``number``, with the same copies at every call."""
        place = self._run.torch_device
        seed = int(np.random.SeedSequence([self._run.seed, _SALT, number]).generate_state(1)[0])
        generator = torch.Generator(device=place).manual_seed(seed)
        for images, *others in self._batches.epoch(number):
            images = to_unit(images.to(place))
            yield images, *others, transformed_copies(images, _COPIES_PER_IMAGE * len(images), generator)


def masked_divergence(teacher: nn.Module, classes: Collection[int]) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return the loss KL(p || softmax l_s(x')) of a student on copies x', averaged over images or pixels.

    The target p is the softmax of the teacher's scores without ``classes``, as in DELETE. If the student has more
    classes than the teacher, only the teacher's count.

    Args:
        teacher: Frozen copy of the original.
        classes: Indices of the classes to forget, and of those forgotten by earlier requests.
    """
    masked = sorted(classes)

    def distance(student: nn.Module, copies: Tensor) -> Tensor:
        with torch.no_grad():
            scores = scores_of(teacher(copies)).float()
            columns = torch.arange(scores.shape[1], device=scores.device).view(-1, *[1] * (scores.ndim - 2))
            barred = torch.zeros_like(columns, dtype=torch.bool)
            for label in masked:
                barred = barred | (columns == label)
            target = scores.masked_fill(barred, -torch.inf).softmax(dim=1)
        answers = scores_of(student(copies)).float()[:, : target.shape[1]]
        return F.kl_div(F.log_softmax(answers, dim=1), target, reduction="none").sum(dim=1).mean()

    return distance
