"""Gradient ascent: increase the loss of the forget images until they are forgotten."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch.nn.functional as F

from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.unlearning.contract import option
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy
from pour.unlearning.registry import register
from pour.unlearning.toolkit.batches import EpochsFrom

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, nn

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["GradientAscent"]

# Largest sample for a check. Only if the sample is forgotten are all forget images checked.
_SAMPLE_OF_CHECK = 500
# Stop accuracy of the shorter run in tuning.
_EARLY_STOP = 0.1


@register
@dataclass(kw_only=True)
class GradientAscent(ForgetOnlyMethod):
    """Maximise the cross-entropy of the forget images until few of them are recognised.

    The loss is -CE(l(x), y). It has no minimum, so rate times steps decides the result. The defaults are from DELETE's
    code. A few dozen steps often separate a network that recognises the class from a destroyed network. So the ascent
    ends when the accuracy on un-augmented forget images is at most `stop_accuracy`. It is checked every `look_every`
    steps and logged. `loss_cap` and `clip` limit the ascent. The published form has `stop_accuracy=None` and no limits.
    """

    name: ClassVar[str] = "gradient-ascent"
    paper: ClassVar[str] = "NegGrad (Golatkar et al., CVPR 2020), forget-only as in DELETE (CVPR 2025)"
    cost: ClassVar[str] = "at most 20 epochs of forget images"
    pixelwise: ClassVar[bool] = True
    several_heads: ClassVar[bool] = True

    stop_accuracy: float | None = option(
        0.002, "Stop at the first check that finds at most this share of forget images recognised.", least=0, below=1
    )
    look_every: int = option(
        5, "Number of steps between two checks, on up to 500 images and, if these are forgotten, on all.", least=1
    )
    loss_cap: float | None = option(
        None, "Cross-entropy above which an image has no gradient; by default there is no limit.", above=0
    )
    clip: float | None = option(None, "Largest norm of the gradient; by default there is no limit.", above=0)

    def lengths(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return two stop accuracies for tuning, because the stop rule ends a run: a tenth, and the accuracy set."""
        if self.stop_accuracy is None or self.stop_accuracy >= _EARLY_STOP:
            return super().lengths()
        return {"stop_accuracy": _EARLY_STOP}, {"stop_accuracy": self.stop_accuracy}

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` until the class is forgotten."""
        # A check uses at most the number of images trained on since the last check, so training takes most of the time.
        sample = tuple(request.forget.sample(min(_SAMPLE_OF_CHECK, self.look_every * self.batch_size), run))
        trajectory: dict[int, float] = {}

        def is_forgotten(step: int) -> bool:
            accuracy = forget_accuracy(model, request, run, batches=sample)
            if self.stop_accuracy is not None and accuracy <= self.stop_accuracy:
                accuracy = forget_accuracy(model, request, run)
            trajectory[step] = accuracy
            return self.stop_accuracy is not None and accuracy <= self.stop_accuracy

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            losses = F.cross_entropy(scores_of(student(to_unit(images))).float(), labels, reduction="none")
            # Beyond the cap the gradient of the minimum is zero.
            losses = losses if self.loss_cap is None else losses.clamp(max=self.loss_cap)
            # The mean is over images or pixels with a label: void pixels have a loss of 0.
            return -losses.sum() / (labels >= 0).sum().clamp(min=1)

        batches = _until(is_forgotten, *self.loaders(run, request.forget), every=self.look_every)
        log = self.train_on_forget(model, objective, request, run, batches=batches, clip=self.clip)
        trajectory[len(log.losses)] = forget_accuracy(model, request, run)
        for step, accuracy in trajectory.items():
            run.log(step, forget_accuracy=accuracy)
        return model


def _until(condition: Callable[[int], bool], batches: Epochs, *, every: int) -> EpochsFrom:
    """Return epochs that contain no further batch after `condition` returned True.

    Args:
        condition: Function of the number of steps so far.
        batches: Loader.
        every: Number of steps between two calls of the condition.
    """
    steps = itertools.count()
    ended = False

    def epoch(number: int) -> Iterator[tuple[Tensor, ...]]:
        nonlocal ended
        for batch in () if ended else batches.epoch(number):
            step = next(steps)
            if step % every == 0 and condition(step):
                ended = True
                return
            yield batch

    return EpochsFrom(len(batches), epoch)
