"""Check that the masked score of the forgotten classes is the lowest score in the output of the model."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pour.errors import UsageError
from pour.models.head import Head
from pour.models.projecting.projected_head import ProjectedHead, masked_score
from pour.models.verify_head import mask_holds

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import nn

    from pour.models.head import Example

__all__ = ["check_mask", "check_retained_biases"]


def check_retained_biases(head: Head, classes: Collection[int]) -> None:
    """Raise UsageError if the biases of all classes other than `classes` are below the mask.

    Examples:
        >>> from torch.nn import Linear
        >>> check_retained_biases(Head("", Linear(2, 3)), [0])
    """
    if head.bias is None:
        return
    retained = [label for label in range(head.num_classes) if label not in classes]
    mask = masked_score(head.bias.dtype)
    if retained and float(head.bias.detach()[retained].max()) <= mask:
        raise UsageError(
            f"The biases of all other classes are below the mask of a forgotten class ({mask:g}), which would win; "
            'subtract the largest bias from all biases, or take forgotten_logit="keep".'
        )


def check_mask(model: nn.Module, name: str, example: Example) -> None:
    """Raise UsageError if a masked class may still be predicted.

    Args:
        model: Network with a projector in front of its head.
        name: Dotted name of the head, or several joined by commas.
        example: An input that the model accepts.
    """
    modules = dict(model.named_modules())
    heads = [Head(each, modules[each]) for each in name.split(",") if isinstance(modules.get(each), ProjectedHead)]
    if heads and not mask_holds(model, dataclasses.replace(heads[0], further_heads=tuple(heads[1:])), example):
        mask = masked_score(heads[0].weight.dtype)
        raise UsageError(
            f"The mask ({mask:g}) of the forgotten classes would have no effect: the retained scores are not above it, "
            "or the model changes scores behind its head; convert the model to float32, remove the activation behind "
            'the head, or take forgotten_logit="keep".'
        )
