"""Distances between mixtures of a few parts of samples, all with one kernel, bandwidth and set of slices."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.geometry.discrepancy import (
    mean_over_pairs,
    random_slices,
    rbf_kernel,
    sliced_wasserstein,
    spread_between,
    wasserstein,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MixtureDistance", "mixture_distance"]

MixtureDistance = Callable[[tuple[float, ...], tuple[float, ...]], float | None]
"""Distance of two mixtures, each described by its share of every part. None if a part with a share is empty."""


def mixture_distance(
    metric: str,
    parts: Sequence[Tensor],
    *,
    bandwidth: float | None,
    num_slices: int,
    generator: torch.Generator | None,
) -> MixtureDistance:
    """Return the distance `metric` as a function of the shares of two mixtures of `parts`.

    Args:
        metric: "mmd", "energy", "wasserstein-1" or "sliced-wasserstein-1". The last two take only single parts, and
            mixtures in which every sample has the same weight.
        parts: Samples of one width, some of which may be empty.
        bandwidth: Bandwidth of the kernel of "mmd".
        num_slices: Number of slices of "sliced-wasserstein-1".
        generator: Source of the slices.
    """
    means = slices = None
    if metric in ("mmd", "energy"):
        kernel = rbf_kernel(bandwidth) if bandwidth is not None and metric == "mmd" else torch.sqrt
        means = mean_over_pairs(parts, kernel)
        # The energy distance is a kernel distance with the opposite sign.
        means = means if metric == "mmd" else -means
    elif metric == "sliced-wasserstein-1":
        slices = random_slices(num_slices, parts[0].shape[1], generator)

    def distance(first: tuple[float, ...], second: tuple[float, ...]) -> float | None:
        if any((a or b) and not len(part) for a, b, part in zip(first, second, parts, strict=True)):
            return None
        if means is not None:
            return float(spread_between(means, [a - b for a, b in zip(first, second, strict=True)]))
        x, y = (
            torch.cat([part for share, part in zip(shares, parts, strict=True) if share]) for shares in (first, second)
        )
        return float(wasserstein(x, y) if slices is None else sliced_wasserstein(x, y, slices=slices))

    return distance
