"""CKA and RUS between the features of two models, with intervals over samples."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from pour.auditing.features import SIDES
from pour.auditing.measurement import Reading, combined
from pour.metrics.cka import linear_ckas
from pour.metrics.unlearning import rus

if TYPE_CHECKING:
    from torch import Tensor

    from pour.auditing.features import Tapped, View
    from pour.metrics.unlearning import Reference

__all__ = ["cka_reading", "cka_standard_error", "rus_reading", "similarities"]

_FEWEST_DEBIASED = 4
# Rows that are in float64 at a time.
_BLOCK = 2048


def similarities(one: Tapped, other: Tapped, split: str, view: View) -> dict[str, Reading]:
    """Return the CKA of two models on the forgotten ("f") and the retained samples ("r") of a split."""
    return {
        letter: cka_reading(one.side(split, side, view), other.side(split, side, view), one.groups(split, side))
        for side, letter in SIDES.items()
    }


def cka_reading(x: Tensor, y: Tensor, samples: Tensor | None = None) -> Reading:
    """Return the linear CKA of two (n, d) feature matrices, its 95 % interval over samples and the debiased value.

    Args:
        x: Features of one model.
        y: Features of another model at the same places.
        samples: Index of the sample of each row, (n,). By default each row is a sample.
    """
    enough = len(x) >= _FEWEST_DEBIASED
    value, *debiased_values = map(float, linear_ckas(x, y, [False, True] if enough else [False]))
    debiased = debiased_values[0] if debiased_values else None
    # The CKA of two images is 1 for all features, so few images give no interval.
    error = cka_standard_error(x, y, samples) if enough else None
    return Reading.around(value, error, n=len(x), within=(0.0, 1.0), debiased=debiased)


@torch.no_grad()
def cka_standard_error(x: Tensor, y: Tensor, samples: Tensor | None = None) -> float | None:
    r"""Return the standard error of linear CKA over the draw of the samples, from the influence of each sample.

    With centred rows, $\mathrm{CKA} = \|C_{xy}\|^2 / (\|C_{xx}\| \|C_{yy}\|)$. Row i changes its logarithm by
    $2 x_i^\top C_{xy} y_i / \|C_{xy}\|^2 - x_i^\top C_{xx} x_i / \|C_{xx}\|^2 - y_i^\top C_{yy} y_i /
    \|C_{yy}\|^2$. The influence of a sample is the sum over its rows. The standard deviation of the influences gives
    the error of the logarithm (the infinitesimal jackknife), with one more pass over the features.

    Args:
        x: `(n, d_x)` features.
        y: `(n, d_y)` features at the same places.
        samples: Index of the sample of each row, (n,). By default each row is a sample.

    Returns:
        0 if either side is constant or n is 1. None if all rows are of one sample.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(2000, 4)
        >>> cka_standard_error(x, x), 0 < cka_standard_error(x, x + torch.randn(2000, 4)) < 0.05
        (0.0, True)
    """
    n = len(x)
    cross, own_x, own_y = _influences(x, y)
    totals = [float(rows.sum()) for rows in (cross, own_x, own_y)]
    if n < 2 or min(totals) <= 0:
        return 0.0
    influence = 2 * cross / totals[0] - own_x / totals[1] - own_y / totals[2]
    if samples is not None:
        rows = torch.bincount(samples)
        influence = influence.new_zeros(len(rows)).index_add_(0, samples, influence)[rows > 0]
        if len(influence) < 2:
            return None
    cka = totals[0] / math.sqrt(totals[1] * totals[2])
    return min(1.0, cka) * float(influence.std()) * math.sqrt(len(influence))


def _influences(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return `x_i . C_xy y_i`, `x_i . C_xx x_i` and `y_i . C_yy y_i` for every row i, of centred rows.

    They come from n x n or d x d products, whichever are smaller; the latter in two passes over blocks of rows.
    """
    mean_x, mean_y = x.mean(dim=0, dtype=torch.float64), y.mean(dim=0, dtype=torch.float64)
    if len(x) < min(x.shape[1], y.shape[1]):
        gram_x, gram_y = (rows @ rows.T for rows in (x - mean_x, y - mean_y))
        return (gram_x * gram_y).sum(dim=1), gram_x.square().sum(dim=1), gram_y.square().sum(dim=1)
    blocks = list(zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True))
    products: list[Tensor] = [torch.zeros((), dtype=torch.float64, device=x.device)] * 3
    parts: list[list[Tensor]] = [[], [], []]
    for collect in (False, True):
        for block_x, block_y in blocks:
            a, b = block_x - mean_x, block_y - mean_y
            for i, (left, right) in enumerate(((a, b), (a, a), (b, b))):
                if collect:
                    parts[i].append(((left @ products[i]) * right).sum(dim=1))
                else:
                    products[i] = products[i] + left.T @ right
    cross, own_x, own_y = map(torch.cat, parts)
    return cross, own_x, own_y


def rus_reading(forget: Reading, retain: Reading, reference: Reference) -> Reading:
    """Return the RUS of the CKA on both sides."""
    score = partial(rus, reference=reference)
    debiased = None
    if forget.debiased is not None and retain.debiased is not None:
        debiased = score(forget.debiased, retain.debiased)
    if forget.low is None or retain.low is None:
        return Reading(value=score(forget.value, retain.value), debiased=debiased, n=forget.n)
    reading = combined(score, forget, retain)
    low, high = reading.bounds
    return replace(reading, low=max(0.0, low), high=min(1.0, high), debiased=debiased)
