"""Choose the learning rate of a run by short trial runs on the same images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pour.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RATES", "find_rate"]

_NEAR = 0.12

RATES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
"""Rates that are tried, from the highest."""


def find_rate(trial: Callable[[float], float], rates: Sequence[float] = RATES) -> float | None:
    """Return the highest rate whose trial ends near the lowest loss, or None if every trial ended above its start.

    A trial returns the loss at its end as a share of the loss at its start. Near means at most 0.12 above the lowest
    loss, because a high rate is worse than low rates in a short trial, and better in a whole run. Trials start with the
    highest rate. They stop after two rates in a row that are worse than the best rate, because a run at a still lower
    rate is only slower.

    Args:
        trial: Function that makes a trial run at a rate from the same start.
        rates: Rates from the highest to the lowest.

    Examples:
        >>> find_rate({1e-2: 5.0, 1e-3: 0.5, 1e-4: 0.4, 1e-5: 1.0}.__getitem__, (1e-2, 1e-3, 1e-4, 1e-5))
        0.001
    """
    losses: dict[float, float] = {}
    for rate in rates:
        try:
            loss = trial(rate)
        except DivergenceError:
            loss = math.inf
        losses[rate] = loss if math.isfinite(loss) else math.inf
        best = min(losses, key=lambda tried: losses[tried])
        if losses[best] < 1 and list(losses).index(best) < len(losses) - 2:
            break
    lowest = min(losses.values())
    near = [rate for rate, loss in losses.items() if loss < 1 and loss <= lowest + _NEAR]
    return max(near, default=None)
