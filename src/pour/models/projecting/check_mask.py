"""Check on an input that the mask of the forgotten classes reaches the output of the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.errors import UsageError
from pour.models.head import Head
from pour.models.projecting.projected_head import ProjectedHead, masked_score
from pour.models.verify_head import mask_holds

if TYPE_CHECKING:
    from torch import nn

    from pour.models.head import Example

__all__ = ["check_mask"]


def check_mask(model: nn.Module, name: str, example: Example) -> None:
    """Raise UsageError if a masked class may still be predicted.

    Args:
        model: Network with a projector in front of its head.
        name: Dotted name of the head.
        example: An input that the model accepts.
    """
    layer = dict(model.named_modules()).get(name)
    if isinstance(layer, ProjectedHead) and not mask_holds(model, Head(name, layer), example):
        mask = masked_score(layer.weight.dtype)
        raise UsageError(
            f"The mask ({mask:g}) of the forgotten classes would have no effect: the retained scores are not above it, "
            "or the model changes scores behind its head. Bring the model to float32, remove the activation behind "
            'the head, or take forgotten_logit="keep".'
        )
