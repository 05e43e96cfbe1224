"""Angles between rows, which show how close class means or the rows of a head are to a simplex."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_samples

__all__ = ["AngleStatistics", "angle_statistics", "pairwise_angles", "random_centered_rows"]

# Relative length below which a row is a rounded zero row, whose direction is arbitrary.
_ZERO_ROW = 1e-6


@dataclass(frozen=True)
class AngleStatistics:
    """Mean and spread of the pairwise angles of rows, in degrees."""

    mean: float
    """Mean angle. The mean alone does not show a simplex, see `angle_statistics`."""
    std: float
    """Standard deviation over the pairs; 0 for a simplex ETF."""
    ideal: float
    """Angle of a simplex of as many rows, arccos(-1/(C-1))."""
    deviation: float
    """Mean absolute difference from the ideal angle; 0 only for a simplex ETF."""


def pairwise_angles(rows: Tensor) -> Tensor:
    """Return the angles between all pairs of `(C, d)` rows in degrees, `(C (C - 1) / 2,)` in float64.

    A zero row, or one a million times shorter than the longest, has no direction: its pairs are NaN.

    Examples:
        >>> import torch
        >>> from pour.geometry import pairwise_angles
        >>> pairwise_angles(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]))
        tensor([ 90., 180.,  90.], dtype=torch.float64)
    """
    rows = as_samples(rows, "rows")
    if len(rows) < 2:
        raise UsageError("rows contains a single row; an angle needs two.")
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    unit = torch.where(norms > _ZERO_ROW * norms.max(), rows / norms, torch.nan)
    cosines = unit @ unit.T
    first, second = torch.triu_indices(len(rows), len(rows), offset=1, device=rows.device)
    return torch.rad2deg(torch.arccos(cosines[first, second].clamp(-1, 1)))


def angle_statistics(rows: Tensor) -> AngleStatistics:
    """Compare the pairwise angles of `(C, d)` rows with those of a simplex of C classes.

    Rows without a direction (see `pairwise_angles`) are ignored, and not counted in C. If fewer than two rows
    have a direction, all values are NaN.

    The mean alone does not show a simplex: any rows of equal norm that sum to zero have mean cosine exactly -1/(C-1).
    Compare the standard deviation with that of `random_centered_rows`.

    Examples:
        >>> from pour.geometry import angle_statistics, simplex_etf
        >>> round(angle_statistics(simplex_etf(10, 64)).mean, 2)
        96.38
    """
    angles = pairwise_angles(rows)
    angles = angles[~angles.isnan()]
    if not len(angles):
        return AngleStatistics(math.nan, math.nan, math.nan, math.nan)
    # m directions have m (m - 1) / 2 pairs.
    count = round((1 + math.sqrt(1 + 8 * len(angles))) / 2)
    ideal = math.degrees(math.acos(-1 / (count - 1)))
    return AngleStatistics(
        mean=float(angles.mean()),
        std=float(angles.std(correction=0)),
        ideal=ideal,
        deviation=float((angles - ideal).abs().mean()),
    )


def random_centered_rows(num_classes: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Return random `(C, d)` Gaussian rows minus their mean in float64, a control for the angles of a simplex.

    Examples:
        >>> import torch
        >>> from pour.geometry import angle_statistics, random_centered_rows
        >>> rows = random_centered_rows(10, 512, torch.Generator().manual_seed(0))
        >>> statistics = angle_statistics(rows)
        >>> round(statistics.mean, 1), statistics.std > 1
        (96.4, True)
    """
    if num_classes < 2 or dim < 1:
        raise UsageError(f"{num_classes} rows of width {dim} have no angles; use at least 2 rows of width 1.")
    device = generator.device if generator is not None else None
    rows = torch.randn(num_classes, dim, dtype=torch.float64, device=device, generator=generator)
    return rows - rows.mean(dim=0)
