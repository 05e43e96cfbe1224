"""Gradient ascent: climb the loss of the forget images, and know when to stop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch.nn.functional as F

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import as_epochs
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy
from pour.unlearning.registry import register

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["GradientAscent"]

# At most so many images are in a look that may still say no.
_QUICK_LOOK = 500
# What a shorter climb leaves of the class.
_EARLY_STOP = 0.1


@register
@dataclass(kw_only=True)
class GradientAscent(ForgetOnlyMethod):
    """Maximise the cross-entropy of the forget images until few of them are recognised.

    The loss is -CE(l(x), y), which has no lower end: what comes out is decided by rate times steps (defaults of
    DELETE's code), and between a class that is still known and a network that is destroyed often lie a few dozen steps.
    So the ascent ends once the accuracy on un-augmented forget images, looked at every ``look_every`` steps and
    logged, is at most ``stop_accuracy``; ``loss_cap`` and ``clip`` bound the climb itself. The published form is
    ``stop_accuracy=None`` with neither.
    """

    name: ClassVar[str] = "gradient-ascent"
    paper: ClassVar[str] = "NegGrad (Golatkar et al., CVPR 2020), forget-only as in DELETE (CVPR 2025)"
    cost: ClassVar[str] = "at most 20 epochs of forget images"
    pixelwise: ClassVar[bool] = True

    stop_accuracy: float | None = 0.002
    """Stop at the first look at which at most this share of forget images is recognised; None never stops."""
    look_every: int = 5
    """Steps from one look to the next; a look is at up to 500 images, and at all once those are forgotten."""
    loss_cap: float | None = None
    """An image whose cross-entropy is above this no longer pulls; None has no bound."""
    clip: float | None = None
    """The largest norm of the gradient; None has no bound."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop_accuracy is not None and not 0 <= self.stop_accuracy < 1:
            raise UsageError(f"stop_accuracy is a share, 0 or more and below 1, but is {self.stop_accuracy}.")
        if self.look_every < 1:
            raise UsageError(f"look_every must be at least 1, but is {self.look_every}.")
        if self.loss_cap is not None and not self.loss_cap > 0:
            raise UsageError(f"loss_cap must be above 0, but is {self.loss_cap}.")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"clip must be above 0, but is {self.clip}.")

    def lengths(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """It is the stop rule that ends a climb, so tuning tries that: at a tenth of the images, and at this one's."""
        if self.stop_accuracy is None or self.stop_accuracy >= _EARLY_STOP:
            return super().lengths()
        return {"stop_accuracy": _EARLY_STOP}, {"stop_accuracy": self.stop_accuracy}

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Climb."""
        # No more images than were trained on since the last look, so that looking stays the smaller part of the work.
        few = tuple(request.forget.sample(min(_QUICK_LOOK, self.look_every * self.batch_size), run))
        trajectory: dict[int, float] = {}

        def forgotten(step: int) -> bool:
            accuracy = forget_accuracy(model, request, run, batches=few)
            if self.stop_accuracy is not None and accuracy <= self.stop_accuracy:
                accuracy = forget_accuracy(model, request, run)
            trajectory[step] = accuracy
            return self.stop_accuracy is not None and accuracy <= self.stop_accuracy

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            losses = F.cross_entropy(scores_of(student(to_unit(images))).float(), labels, reduction="none")
            # Beyond the cap the gradient of the minimum is zero.
            losses = losses if self.loss_cap is None else losses.clamp(max=self.loss_cap)
            # The mean over what has a label: pixels that count for nothing have a loss of 0.
            return -losses.sum() / (labels >= 0).sum().clamp(min=1)

        batches = as_epochs(request.forget.training(run, batch_size=self.batch_size, augment=self.augment), run)
        batches, loss = self.anchored(model, request, run, batches, objective)
        log = self.train(model, _Until(batches, forgotten, self.look_every), loss, run, clip=self.clip)
        trajectory[len(log.losses)] = forget_accuracy(model, request, run)
        for step, accuracy in trajectory.items():
            run.log(step, forget_accuracy=accuracy)
        return model


class _Until:
    """Epochs that have no more batches once ``done`` says so; it is asked with the steps so far, every so many."""

    def __init__(self, batches: Epochs, done: Callable[[int], bool], every: int) -> None:
        self._batches = batches
        self._done = done
        self._every = every
        self._steps = 0
        self._ended = False

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """The batches of epoch ``number``, none from the end on."""
        for batch in () if self._ended else self._batches.epoch(number):
            if self._steps % self._every == 0 and self._done(self._steps):
                self._ended = True
                return
            self._steps += 1
            yield batch
