"""Check on an input that the mask of the forgotten classes reaches the output of the model."""

from __future__ import annotations

import dataclasses
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
        name: Dotted name of the head, or several joined by commas.
        example: An input that the model accepts.
    """
    modules = dict(model.named_modules())
    heads = [Head(each, modules[each]) for each in name.split(",") if isinstance(modules.get(each), ProjectedHead)]
    if heads and not mask_holds(model, dataclasses.replace(heads[0], beside=tuple(heads[1:])), example):
        mask = masked_score(heads[0].weight.dtype)
        raise UsageError(
            f"The mask ({mask:g}) of the forgotten classes would have no effect: the retained scores are not above it, "
            "or the model changes scores behind its head. Bring the model to float32, remove the activation behind "
            'the head, or take forgotten_logit="keep".'
        )
