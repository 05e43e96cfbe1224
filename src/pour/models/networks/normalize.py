"""Normalisation as a layer, so that every network takes images in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pour.errors import UsageError
from pour.models.output import scores_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Normalize", "NormalizedModel", "is_wrapped", "resized"]


class Normalize(nn.Module):
    """Compute `(images - mean) / std` per channel for images in [0, 1] of shape (N, C, H, W).

    A grey image (C = 1) is repeated if the layer has several channels.

    Examples:
        >>> layer = Normalize([0.5], [0.25])
        >>> layer(torch.ones(1, 1, 2, 2)).flatten().tolist()
        [2.0, 2.0, 2.0, 2.0]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean:
            raise UsageError(
                f"The normalisation has {len(mean)} means and {len(std)} deviations; pass one of each per channel."
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        if not torch.isfinite(self.mean).all() or not torch.isfinite(self.std).all() or (self.std <= 0).any():
            raise UsageError(f"The normalisation needs finite means and deviations above 0, but got {mean} and {std}.")

    def forward(self, images: Tensor) -> Tensor:
        """Normalise `images` of shape (N, C, H, W)."""
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """Return the constants for `print(model)`."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class NormalizedModel(nn.Module):
    """A network of another library for images in [0, 1]: normalise, resize, run, return the scores.

    It takes images (N, C, H, W) and returns scores (N, num_classes). `resize` is the size of the network's input. If
    it is None, images are not resized.
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], *, resize: int | None = None
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.model = model
        self.resize = resize

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores of `images`."""
        return scores_of(self.model(resized(self.normalize(images), self.resize)))

    def extra_repr(self) -> str:
        """Return the input size for `print(model)`, which also names the network in a cache of features."""
        return f"resize={self.resize}"


def is_wrapped(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict belongs to a `NormalizedModel`."""
    return "normalize.mean" in state and all(name.startswith(("model.", "normalize.")) for name in state)


def resized(images: Tensor, side: int | None) -> Tensor:
    """Return images (N, C, H, W) scaled to `side` x `side`. With None they do not change."""
    if side is None or images.shape[-2:] == (side, side):
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False, antialias=True)
