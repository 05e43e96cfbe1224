"""A measured value with its interval."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pour._records import record
from pour.errors import PourError
from pour.metrics.intervals import Z95

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pour.metrics.intervals import Estimate

__all__ = ["Reading", "combined", "hull"]


@record()
class Reading:
    """A value, its 95 % interval over images if there are enough of them, and the number of images.

    Examples:
        >>> Reading(value=0.5, low=0.4, high=0.6, n=100).covers(0.45)
        True
    """

    value: float
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    """Upper end of the 95 % interval."""
    debiased: float | None = None
    """Estimate without finite-sample bias, for CKA and RUS."""
    n: int | None = None
    """Number of images."""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high", "debiased"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise PourError(f"The {name} of a measurement is {number}; this is an error in pour, please report it.")

    @classmethod
    def of(cls, estimate: Estimate, n: int) -> Reading:
        """Return the reading of an estimate."""
        return cls(value=estimate.value, low=estimate.low, high=estimate.high, n=n)

    @classmethod
    def around(
        cls, value: float, error: float | None, *, n: int, within: tuple[float, float], debiased: float | None = None
    ) -> Reading:
        """Return a value with the normal interval of its standard error.

        Args:
            value: Value of the metric.
            error: Standard error; None for too few images, which have no interval.
            n: Number of images.
            within: Range of the metric, which limits the interval.
            debiased: Estimate without finite-sample bias.
        """
        if error is None:
            return cls(value=value, debiased=debiased, n=n)
        low, high = max(within[0], value - Z95 * error), min(within[1], value + Z95 * error)
        return cls(value=value, low=min(low, value), high=max(high, value), debiased=debiased, n=n)

    @property
    def bounds(self) -> tuple[float, float]:
        """Ends of the interval; the value itself replaces a missing end."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    def covers(self, value: float) -> bool:
        """Return whether `value` is in the interval."""
        low, high = self.bounds
        return low <= value <= high


def hull(readings: Sequence[Reading]) -> Reading | None:
    """Return the first reading with an interval that covers the intervals of all: the spread over images and seeds."""
    if not readings:
        return None
    first = readings[0]
    if len(readings) == 1 and first.low is None and first.high is None:
        return first
    bounds = [reading.bounds for reading in readings]
    return Reading(
        value=first.value,
        low=min(low for low, _ in bounds),
        high=max(high for _, high in bounds),
        debiased=first.debiased,
        n=first.n,
    )


def combined(function: Callable[..., float], *readings: Reading) -> Reading:
    """Return a monotone function of readings. Their errors are independent, so the squares of the errors add up.

    Examples:
        >>> combined(lambda x, y: x + y, Reading(value=1.0, low=0.7, high=1.3), Reading(value=2.0, low=1.6, high=2.4))
        Reading(value=3.0, low=2.5, high=3.5, debiased=None, n=None)
    """
    values = [reading.value for reading in readings]
    value = function(*values)
    ends = [
        [function(*values[:i], end, *values[i + 1 :]) for end in reading.bounds] for i, reading in enumerate(readings)
    ]
    below, above = (math.hypot(*(value - end(pair) for pair in ends)) for end in (min, max))
    return Reading(value=value, low=value - below, high=value + above, n=readings[0].n)
