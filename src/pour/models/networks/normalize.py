"""Input normalisation as a layer, so that every model takes images in [0, 1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Normalize"]


class Normalize(nn.Module):
    """``(images - mean) / std`` for each channel: images in [0, 1], shape (N, C, H, W), in; the same shape out.

    A grey image (C = 1) given to a layer with several channels is repeated over them.

    Example:
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
                f"The normalisation has {len(mean)} means and {len(std)} deviations; give one of each per channel."
            )
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32).view(1, -1, 1, 1))
        if not torch.isfinite(self.mean).all() or not torch.isfinite(self.std).all() or (self.std <= 0).any():
            raise UsageError(f"The normalisation needs finite means and deviations above 0, but got {mean} and {std}.")

    def forward(self, images: Tensor) -> Tensor:
        """Normalise ``images`` of shape (N, C, H, W)."""
        return (images - self.mean) / self.std

    def extra_repr(self) -> str:
        """Show the constants in ``print(model)``."""
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"
