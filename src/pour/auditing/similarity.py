"""CKA and RUS between two models' features, with the interval that the choice of images leaves open."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pour.auditing.measurement import Reading
from pour.metrics.cka import linear_cka
from pour.metrics.unlearning import rus

if TYPE_CHECKING:
    from torch import Tensor

    from pour.auditing.features import Tapped, View
    from pour.metrics.unlearning import Reference

__all__ = ["cka_reading", "cka_standard_error", "rus_reading", "similarities"]

_FEWEST_DEBIASED = 4


def similarities(one: Tapped, other: Tapped, split: str, view: View) -> dict[str, Reading]:
    """CKA of two models on the forgotten ("f") and the retained images ("r") of a split."""
    return {
        "f": cka_reading(one.side(split, "forget", view), other.side(split, "forget", view)),
        "r": cka_reading(one.side(split, "retain", view), other.side(split, "retain", view)),
    }


def cka_reading(x: Tensor, y: Tensor) -> Reading:
    """Linear CKA of two (n, d) feature matrices, with its 95 % interval and the debiased value beside it."""
    debiased = float(linear_cka(x, y, debiased=True)) if len(x) >= _FEWEST_DEBIASED else None
    value = float(linear_cka(x, y))
    # Of two images CKA is 1 whatever the features are: so few leave no interval to read anything against.
    error = cka_standard_error(x, y) if len(x) >= _FEWEST_DEBIASED else None
    return Reading.around(value, error, n=len(x), within=(0.0, 1.0), debiased=debiased)


@torch.no_grad()
def cka_standard_error(x: Tensor, y: Tensor) -> float:
    r"""Standard error of linear CKA over the draw of the images, from the influence of each image.

    With centred rows, :math:`\mathrm{CKA} = \|C_{xy}\|^2 / (\|C_{xx}\| \|C_{yy}\|)`, and image i moves its logarithm by
    :math:`2 x_i^\top C_{xy} y_i / \|C_{xy}\|^2 - x_i^\top C_{xx} x_i / \|C_{xx}\|^2 - y_i^\top C_{yy} y_i /
    \|C_{yy}\|^2`; the standard deviation of this over the square root of n is the error of the logarithm (the
    infinitesimal jackknife). One more pass over the features, where a bootstrap would take hundreds.

    Args:
        x: ``(n, d_x)`` features.
        y: ``(n, d_y)`` features of the same images.

    Returns:
        0 where either side is constant or n is 1.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> x = torch.randn(2000, 4)
        >>> cka_standard_error(x, x), 0 < cka_standard_error(x, x + torch.randn(2000, 4)) < 0.05
        (0.0, True)
    """
    x, y = (rows.double() - rows.double().mean(dim=0) for rows in (x, y))
    n = len(x)
    cross, own_x, own_y = (_products(a, b) for a, b in ((x, y), (x, x), (y, y)))
    totals = [float(rows.sum()) for rows in (cross, own_x, own_y)]
    if n < 2 or min(totals) <= 0:
        return 0.0
    influence = n * (2 * cross / totals[0] - own_x / totals[1] - own_y / totals[2])
    cka = totals[0] / math.sqrt(totals[1] * totals[2])
    return min(1.0, cka) * float(influence.std()) / math.sqrt(n)


def _products(x: Tensor, y: Tensor) -> Tensor:
    """``x_i . (x^T y) y_i`` for every row i, through d x d or n x n products, whichever is smaller."""
    if len(x) < min(x.shape[1], y.shape[1]):
        return ((x @ x.T) * (y @ y.T)).sum(dim=1)
    return ((x @ (x.T @ y)) * y).sum(dim=1)


def rus_reading(forget: Reading, retain: Reading, reference: Reference) -> Reading:
    """RUS of the two sides' CKA; the errors of the two, on different images, add in squares."""
    value = rus(forget.value, retain.value, reference=reference)
    debiased = None
    if forget.debiased is not None and retain.debiased is not None:
        debiased = rus(forget.debiased, retain.debiased, reference=reference)
    if forget.low is None or retain.low is None:
        return Reading(value=value, debiased=debiased, n=forget.n)
    ends_f = [rus(end, retain.value, reference=reference) for end in forget.bounds]
    ends_r = [rus(forget.value, end, reference=reference) for end in retain.bounds]
    below = math.hypot(value - min(ends_f), value - min(ends_r))
    above = math.hypot(max(ends_f) - value, max(ends_r) - value)
    return Reading(
        value=value, low=max(0.0, value - below), high=min(1.0, value + above), debiased=debiased, n=forget.n
    )
