"""95 % confidence intervals of rates, of balanced accuracy and of the area under the ROC curve."""

from dataclasses import dataclass
from math import sqrt

from pour.errors import UsageError

__all__ = ["Estimate", "auc_estimate", "balanced_accuracy", "wilson"]

_Z = 1.959963984540054  # the normal quantile of a two-sided 95 % interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with its 95 % interval.

    Example:
        >>> Estimate(0.5, 0.4, 0.6).covers(0.45)
        True
    """

    value: float
    """The point estimate."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""

    def covers(self, other: float) -> bool:
        """Return whether `other` lies in the interval."""
        return self.low <= other <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: int, n: int) -> Estimate:
    """Return the rate `successes / n` with Wilson's score interval.

    The interval holds the p with |rate - p| <= z sqrt(p (1 - p) / n); it stays in [0, 1] and does not shrink to a
    point at rates of 0 and 1.

    Example:
        >>> print(wilson(0, 100))
        0.000 [0.000, 0.037]
    """
    if n < 1 or not 0 <= successes <= n:
        raise UsageError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}.")
    rate = successes / n
    spread = 1 + _Z**2 / n
    centre = (rate + _Z**2 / (2 * n)) / spread
    half = _Z * sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2)) / spread
    # At the two ends the formula is exactly 0 or 1 but for rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Estimate(rate, low, high)


def balanced_accuracy(true_positive: Estimate, false_positive: Estimate) -> Estimate:
    """Return (TPR + 1 - FPR) / 2 with Newcombe's interval for the difference of two independent rates.

    The ends of the two rates' own intervals are combined in squares, so that the result inherits their good
    behaviour near 0 and 1.

    Example:
        >>> print(balanced_accuracy(wilson(90, 100), wilson(10, 100)))
        0.900 [0.847, 0.932]
    """
    p, q = true_positive, false_positive
    value = (1 + p.value - q.value) / 2
    below = sqrt((p.value - p.low) ** 2 + (q.high - q.value) ** 2) / 2
    above = sqrt((p.high - p.value) ** 2 + (q.value - q.low) ** 2) / 2
    return Estimate(value, max(0.0, value - below), min(1.0, value + above))


def auc_estimate(auc: float, positives: int, negatives: int) -> Estimate:
    """Return an area under the ROC curve with the score interval of Hanley and McNeil's variance.

    The interval holds the theta with |auc - theta| <= z sqrt(V(theta)),
    V(theta) = theta (1 - theta) (1 + (N - 1) ((1 - theta)/(2 - theta) + theta/(1 + theta))) / (m n), N = (m + n)/2:
    Newcombe's fifth method (2006), the analogue of Wilson's interval, which keeps a width at areas of 0 and 1.

    Args:
        auc: the area, in [0, 1].
        positives: number m of positive samples.
        negatives: number n of negative samples.

    Example:
        >>> print(auc_estimate(1.0, 50, 50))
        1.000 [0.960, 1.000]
    """
    if positives < 1 or negatives < 1 or not 0 <= auc <= 1:
        raise UsageError(
            f"an area under the ROC curve lies in [0, 1] and needs samples of both kinds, "
            f"got {auc} from {positives} positives and {negatives} negatives."
        )
    mean_size = (positives + negatives) / 2

    def outside(theta: float) -> bool:
        shape = 1 + (mean_size - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(auc - theta) > _Z * sqrt(max(0.0, theta * (1 - theta) * shape / (positives * negatives)))

    def end(far: float) -> float:
        near = auc
        for _ in range(60):
            middle = (near + far) / 2
            if outside(middle):
                far = middle
            else:
                near = middle
        return near

    return Estimate(auc, end(0.0), end(1.0))
