"""Find the head of a model on a few images of its data, in any precision and on any device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pour.errors import UsageError
from pour.models.copy_and_swap import in_float32
from pour.models.head import Head, find_head, named_head
from pour.models.tap import device_of, to_unit
from pour.models.unwrap import unwrap
from pour.models.verify_head import CannotRunError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

__all__ = ["FEW_IMAGES", "head_on_images"]

FEW_IMAGES = 8
"""Number of images that verify a head."""


def head_on_images(model: nn.Module, images: Tensor, *, head: str | Sequence[str] | None = None) -> Head:
    """Find the head of `model` and verify it on `images`, see `find_head`.

    Args:
        model: Any classifier, which is not changed.
        images: A few images, uint8 or floats in [0, 1], on any device.
        head: Dotted name of the head.

    Raises:
        UsageError: There is no head, or the model cannot run on the images.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.Linear(8, 3)).half()
        >>> head_on_images(model, torch.zeros(2, 1, 2, 2, dtype=torch.uint8)).name
        '2'
    """
    network = in_float32(unwrap(model))
    example = to_unit(images[:FEW_IMAGES]).float().to(device_of(network))
    try:
        verified = find_head(network, head=head, example=example)
    except CannotRunError as error:
        problem = f"The model cannot run on images of shape {tuple(example.shape)}"
        general = f" ({error.reason}); pass images of the size and channels that it accepts."
        raise UsageError(f"{problem}: {error.advice}." if error.advice else f"{problem}{general}") from error
    return dataclasses.replace(named_head(model, verified.names), found_by=verified.found_by)
