"""What a trained encoder must meet to be released, and the way back if it does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pour.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

__all__ = ["MOST_ANCHOR_ERROR", "MOST_CHANGED", "MOST_ENCODER_SHARE", "Measured", "copy_state", "move_back"]

MOST_ANCHOR_ERROR = 0.05
"""Largest mean squared change of the anchors' projected features, as a share of their variance."""
MOST_CHANGED = 0.1
"""Largest share of the anchors whose decision between retained classes may change."""
MOST_ENCODER_SHARE = 0.03
"""Share of the forget images that the encoder may still give away before a warning names it."""
_PARTS = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)


@dataclass(frozen=True)
class Measured:
    """What is measured of an encoder with the projector in front of its head."""

    left: float
    """Share of the forget images whose answer, as released, is a forgotten class."""
    changed: float
    """Share of the anchors whose decision between retained classes, as released, is not the original's."""
    anchor_error: float
    """Mean squared change of the anchors' projected features, as a share of their variance."""

    def accepted(self, most_left: float) -> bool:
        """Return whether the encoder may be released; not a number is not accepted."""
        return self.left <= most_left and self.changed <= MOST_CHANGED and self.anchor_error <= MOST_ANCHOR_ERROR


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's state dict."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def move_back(
    model: nn.Module, original: dict[str, Tensor], measure: Callable[[], Measured], *, most_left: float
) -> tuple[float, Measured | None]:
    """Move ``model`` back towards its original weights until it is accepted; return the part kept and its measures.

    The parts 1, 0.9, 0.8, ... 0.1 of the way are tried. If none is accepted, the original weights are restored, and
    the part is 0, without measures.

    Args:
        model: Trained network, changed in place.
        original: State dict from before the training.
        measure: Function that measures ``model`` as it is.
        most_left: Largest share of the forget images that may keep their class as released.
    """
    trained = copy_state(model)
    if all(bool(tensor.isfinite().all()) for tensor in trained.values() if tensor.is_floating_point()):
        for part in _PARTS:
            _interpolate(model, original, trained, part)
            try:
                found = measure()
            except DivergenceError:
                continue
            if found.accepted(most_left):
                return part, found
    model.load_state_dict(original)
    return 0.0, None


def _interpolate(model: nn.Module, start: dict[str, Tensor], end: dict[str, Tensor], part: float) -> None:
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point() or part == 1:
            tensor.copy_(end[name])
        else:
            tensor.copy_(torch.lerp(start[name], end[name], part))
