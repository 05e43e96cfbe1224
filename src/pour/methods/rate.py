"""The learning rate of a run, found by short trial runs on the run's own images."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pour.errors import DivergenceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RATES", "find_rate"]

RATES = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5)
"""Rates that are tried, from the highest."""


def find_rate(trial: Callable[[float], float], rates: Sequence[float] = RATES) -> float | None:
    """Return the rate with the lowest loss after its trial run, or None if every trial ended above its start.

    A trial returns the loss at its end as a share of the loss at its start. Trials go from the highest rate down and
    stop after two rates in a row that are worse than the best: below it, a run is only slower.

    Args:
        trial: Function that makes a trial run at a rate from the same start.
        rates: Rates from the highest to the lowest.

    Example:
        >>> find_rate({1e-2: 5.0, 1e-3: 0.4, 1e-4: 0.9, 1e-5: 1.0}.__getitem__, (1e-2, 1e-3, 1e-4, 1e-5))
        0.001
    """
    best, lowest, worse = None, 1.0, 0
    for rate in rates:
        try:
            loss = trial(rate)
        except DivergenceError:
            loss = math.inf
        if loss < lowest:
            best, lowest, worse = rate, loss, 0
        elif best is not None:
            worse += 1
            if worse == 2:
                break
    return best
