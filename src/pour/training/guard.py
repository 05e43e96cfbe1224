"""Stop an optimisation that diverges."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pour.errors import DivergenceError
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import to_unit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

__all__ = ["DivergenceGuard", "check_sound"]

_FIRST_STEPS = 5
_EXPLOSION = 100.0


class DivergenceGuard:
    """Raise DivergenceError for a loss that is not finite, or over 100 times the largest of the first five and of 1.

    Each of the first five losses is compared with the losses before it. Signs are ignored, so that the check also stops
    an ascent, whose loss falls without limit.

    Examples:
        >>> guard = DivergenceGuard()
        >>> guard.check([2.3, 2.1], first_step=0, learning_rates=[0.1, 0.1])
        >>> guard.check([float("nan")], first_step=2, learning_rates=[0.1])
        Traceback (most recent call last):
        pour.errors.DivergenceError: The loss became nan at step 2 (learning rate 0.1); use a smaller learning rate.
    """

    def __init__(self) -> None:
        self._scale = 1.0

    def check(self, losses: Sequence[float], *, first_step: int, learning_rates: Sequence[float]) -> None:
        """Check the losses of the steps from `first_step` on."""
        for step, (loss, rate) in enumerate(zip(losses, learning_rates, strict=True), start=first_step):
            if not math.isfinite(loss):
                raise DivergenceError(
                    f"The loss became {loss} at step {step} (learning rate {rate:.3g}); use a smaller learning rate."
                )
            # No step has been taken before the first loss, so it cannot have exploded.
            if step > 0 and abs(loss) > _EXPLOSION * self._scale:
                raise DivergenceError(
                    f"The loss exploded to {loss:.3g} at step {step} (learning rate {rate:.3g}); "
                    "use a smaller learning rate."
                )
            if step < _FIRST_STEPS:
                self._scale = max(self._scale, abs(loss))


def check_sound(model: nn.Module, images: Tensor) -> None:
    """Raise DivergenceError if a trained model's scores of `images` are not finite; both are on one device.

    A loss is measured before its step, so no loss checks the weights after the last step.
    """
    with evaluating(model), torch.inference_mode():
        highest = scores_of(model(to_unit(images))).amax(dim=1)
    # A score of -inf is a mask.
    if not bool(highest.isfinite().all()):
        raise DivergenceError("The model's scores are no longer finite; use a smaller learning rate.")
