"""Transformed copies of images, which hold a network in place where no other images are at hand."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["has_views", "transformed_copies"]

# Smaller planes have too few distinct shifts.
_SMALLEST_SIDE = 4
_LARGEST_SHIFT = 3 / 8
_CHANNELS = 3


def has_views(inputs: Tensor) -> bool:
    """Return whether ``inputs`` are planes that can be rolled and turned: (n, ..., height, width), floats or uint8.

    Example:
        >>> has_views(torch.zeros(2, 3, 8, 6)), has_views(torch.zeros(2, 64))
        (True, False)
    """
    return _is_pixels(inputs) and inputs.ndim >= 3 and min(inputs.shape[-2:]) >= _SMALLEST_SIDE


def _is_pixels(inputs: Tensor) -> bool:
    return inputs.is_floating_point() or inputs.dtype == torch.uint8


def transformed_copies(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` transformed copies of ``images`` that seldom still look like their class.

    Each copy is drawn from a random image and passes these steps, each with a probability of its own: its halves or
    its sides are exchanged with another image's, it is turned by a multiple of 90 degrees (180 if it is not square)
    and mirrored, rolled by up to 3/8 of each side, its three colour channels are permuted, it is blended with another
    copy, and it gets noise of up to half of its value range.

    Args:
        images: Floats of shape (n, ..., height, width).
        count: Number of copies.
        generator: Source of randomness, on the device of ``images``.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> transformed_copies(torch.rand(2, 1, 8, 8), 5, generator).shape
        torch.Size([5, 1, 8, 8])
    """
    place = images.device

    def drawn(limit: int) -> Tensor:
        return torch.randint(limit, (count,), generator=generator, device=place)

    def share(probability: float) -> Tensor:
        chosen = torch.rand(count, generator=generator, device=place) < probability
        return chosen.view(-1, *[1] * (images.ndim - 1))

    copies = images[drawn(len(images))]
    for axis, probability in ((-2, 0.4), (-1, 0.3)):
        half = copies.shape[axis] // 2
        other = images[drawn(len(images))]
        kept = copies.shape[axis] - half
        exchanged = torch.cat([copies.narrow(axis, kept, half), other.narrow(axis, 0, kept)], dim=axis)
        copies = torch.where(share(probability), exchanged, copies)
    if copies.shape[-1] == copies.shape[-2]:
        copies = torch.where(share(0.5), copies.transpose(-1, -2), copies)
    turned = share(0.5)
    for axis in (-2, -1):
        # Without a transposition, both flips together are the half turn of an image that is not square.
        copies = torch.where(turned if axis == -2 else share(0.5), copies.flip(axis), copies)
    for axis in (-2, -1):
        copies = _rolled(copies, axis, generator)
    if copies.ndim == 4 and copies.shape[1] == _CHANNELS:
        order = torch.rand(count, _CHANNELS, generator=generator, device=place).argsort(dim=1)
        permuted = copies.gather(1, order.view(count, _CHANNELS, 1, 1).expand_as(copies))
        copies = torch.where(share(0.5), permuted, copies)
    weight = torch.rand(share(0).shape, generator=generator, device=place, dtype=images.dtype)
    blended = weight * copies + (1 - weight) * copies[drawn(count)]
    copies = torch.where(share(0.3), blended, copies)
    strength = 0.5 * torch.rand(weight.shape, generator=generator, device=place, dtype=images.dtype)
    strength = strength * share(0.7) * (images.amax() - images.amin())
    noise = torch.randn(copies.shape, generator=generator, device=place, dtype=images.dtype)
    return copies + strength * noise


def _rolled(copies: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Roll each copy along ``axis`` by its own random number of pixels."""
    size = copies.shape[axis]
    limit = max(1, int(_LARGEST_SHIFT * size))
    shifts = torch.randint(-limit, limit + 1, (len(copies), 1), generator=generator, device=copies.device)
    places = (torch.arange(size, device=copies.device) + shifts) % size
    shape = [len(copies), *[1] * (copies.ndim - 1)]
    shape[axis] = size
    return copies.gather(copies.ndim + axis, places.view(shape).expand_as(copies))
