"""One feature vector to an image, whatever the head sees."""

from __future__ import annotations

from torch import Tensor

__all__ = ["pool_features"]


def pool_features(features: Tensor, dim: int) -> Tensor:
    """Features as (n, d): token sequences and maps, with the features in ``dim``, are averaged over positions.

    Example:
        >>> import torch
        >>> pool_features(torch.zeros(2, 64, 4, 4), 1).shape, pool_features(torch.zeros(2, 64), -1).shape
        (torch.Size([2, 64]), torch.Size([2, 64]))
    """
    return features if features.ndim == 2 else features.movedim(dim, -1).flatten(1, -2).mean(dim=1)
