"""One measured number, with what is needed to read it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pour._records import record
from pour.errors import PourError
from pour.metrics.intervals import Z95

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.metrics.intervals import Estimate

__all__ = ["Reading", "hull"]


@record
@dataclass(frozen=True, kw_only=True)
class Reading:
    """A value, its 95 % interval over images where it has one, and the number of images.

    Example:
        >>> Reading(value=0.5, low=0.4, high=0.6, n=100).covers(0.45)
        True
    """

    value: float
    low: float | None = None
    """Lower end of the 95 % interval."""
    high: float | None = None
    """Upper end of the 95 % interval."""
    debiased: float | None = None
    """The estimate without finite-sample bias, for CKA and what is made of it."""
    n: int | None = None
    """Images it was measured on."""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high", "debiased"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise PourError(
                    f"A measurement came out as {name} {number}; this is a fault in pour, please report it."
                )

    @classmethod
    def of(cls, estimate: Estimate, n: int) -> Reading:
        """A metric's estimate."""
        return cls(value=estimate.value, low=estimate.low, high=estimate.high, n=n)

    @classmethod
    def around(
        cls, value: float, error: float | None, *, n: int, within: tuple[float, float], debiased: float | None = None
    ) -> Reading:
        """A value with a normal interval of the given standard error, cut to the range that the metric can take.

        Without an error, as of too few images, there is no interval.
        """
        if error is None:
            return cls(value=value, debiased=debiased, n=n)
        low, high = max(within[0], value - Z95 * error), min(within[1], value + Z95 * error)
        return cls(value=value, low=min(low, value), high=max(high, value), debiased=debiased, n=n)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the value twice."""
        return (self.value if self.low is None else self.low, self.value if self.high is None else self.high)

    def covers(self, value: float) -> bool:
        """Whether ``value`` is in the interval."""
        low, high = self.bounds
        return low <= value <= high


def hull(readings: Sequence[Reading]) -> Reading | None:
    """The first reading with an interval that holds those of all: the spread over images and over seeds."""
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
