"""Learning rates of single layers, and warnings about a distilled encoder."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from pour.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

__all__ = ["MOST_LEFT", "layer_factor", "warn_of_class", "warn_of_rise"]

MOST_LEFT = 0.002
"""Largest share of the forget images, or of the class's pixels, that may keep their class."""
_LOSSES_JUDGED = 10
# Factor of the loss above which the differences between batches do not explain a rise.
_RISE = 1.2


def layer_factor(model: nn.Module, decay: float) -> Callable[[str], float] | None:
    """Return the factor of the learning rate by parameter name; None if all layers train alike.

    Layers are modules with trained parameters, in order. The last layer trains at the full rate.

    Args:
        model: Network.
        decay: Factor between a layer and the next layer.
    """
    if decay == 1:
        return None
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))
    depth = {layer: len(layers) - 1 - position for position, layer in enumerate(layers)}
    return lambda name: float(decay ** depth[name.rpartition(".")[0]])


def warn_of_rise(losses: list[float], lr: float) -> None:
    """Warn if the loss rose. A destroyed network has a low accuracy too, so the accuracy alone does not show it.

    Args:
        losses: Loss of the un-augmented images before training, then the loss of each step.
        lr: Learning rate.
    """
    before, after = max(losses[:2]), statistics.fmean(losses[-_LOSSES_JUDGED:])
    if after > _RISE * before:
        warn(
            f"pour-d's loss rose from {before:.3g} to {after:.3g} at a learning rate of {lr:.3g}, which "
            'damages the network; lower lr. Pretrained transformers: optimizer="adamw", lr=3e-6.'
        )


def warn_of_class(accuracy: float, target_accuracy: float) -> None:
    """Warn that the class is still recognised.

    Args:
        accuracy: Accuracy of the student on forget images.
        target_accuracy: Accuracy of the projected original. A student cannot forget a class that its target shows.
    """
    remedy = "raise steps or lr"
    if target_accuracy > MOST_LEFT:
        remedy = (
            f"the projection that it learns leaves {target_accuracy:.1%}, which is possible if the head has not "
            'collapsed; take direction="decisions" or "scores"'
        )
    warn(
        f"pour-d still classifies {accuracy:.1%} of the forget images as before (at most {MOST_LEFT:.1%} is accepted); "
        f"{remedy}."
    )
