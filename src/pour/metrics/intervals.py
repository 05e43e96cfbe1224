"""95 % confidence intervals of rates, their differences, balanced accuracy and the area under the ROC curve."""

from dataclasses import dataclass
from math import sqrt

from pour.errors import UsageError

__all__ = ["Z95", "Estimate", "auc_estimate", "balanced_accuracy", "rate_difference", "wilson"]

Z95 = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value with its 95 % interval.

    Examples:
        >>> Estimate(0.5, 0.4, 0.6).covers(0.45)
        True
    """

    value: float
    """Measured value, the point estimate."""
    low: float
    """Lower end of the 95 % interval."""
    high: float
    """Upper end of the 95 % interval."""

    def covers(self, other: float) -> bool:
        """Return whether `other` is in the interval."""
        return self.low <= other <= self.high

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def wilson(successes: int, n: int) -> Estimate:
    """Return the rate `successes / n` with Wilson's score interval.

    The interval contains all p with |rate - p| <= z sqrt(p (1 - p) / n). It is inside [0, 1], and its width is above 0
    even at rates of 0 and 1.

    Examples:
        >>> print(wilson(0, 100))
        0.000 [0.000, 0.037]
    """
    if n < 1 or not 0 <= successes <= n:
        raise UsageError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}.")
    rate = successes / n
    spread = 1 + Z95**2 / n
    centre = (rate + Z95**2 / (2 * n)) / spread
    half = Z95 * sqrt(rate * (1 - rate) / n + Z95**2 / (4 * n**2)) / spread
    # At the two ends the formula is 0 or 1 up to rounding.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    high = 1.0 if successes == n else min(1.0, centre + half)
    return Estimate(rate, low, high)


def balanced_accuracy(true_positive: Estimate, false_positive: Estimate) -> Estimate:
    """Return (TPR + 1 - FPR) / 2, with the interval that follows from `rate_difference`.

    Examples:
        >>> print(balanced_accuracy(wilson(90, 100), wilson(10, 100)))
        0.900 [0.847, 0.932]
    """
    apart = rate_difference(true_positive, false_positive)
    return Estimate(*((1 + end) / 2 for end in (apart.value, apart.low, apart.high)))


def rate_difference(one: Estimate, other: Estimate) -> Estimate:
    """Return the difference of two independent rates with Newcombe's interval.

    Its ends combine the ends of the two rates' intervals by the root of the sum of squares. So the interval remains
    valid for rates near 0 and 1.

    Examples:
        >>> print(rate_difference(wilson(90, 100), wilson(10, 100)))
        0.800 [0.695, 0.863]
    """
    value = one.value - other.value
    below = sqrt((one.value - one.low) ** 2 + (other.high - other.value) ** 2)
    above = sqrt((one.high - one.value) ** 2 + (other.value - other.low) ** 2)
    return Estimate(value, max(-1.0, value - below), min(1.0, value + above))


def auc_estimate(auc: float, positives: int, negatives: int) -> Estimate:
    """Return an area under the ROC curve with the score interval of Hanley and McNeil's variance.

    The interval contains all theta with |auc - theta| <= z sqrt(V(theta)),
    V(theta) = theta (1 - theta) (1 + (N - 1) ((1 - theta)/(2 - theta) + theta/(1 + theta))) / (m n), N = (m + n)/2.
    This is Newcombe's fifth method (2006), the analogue of Wilson's interval. Its width is above 0 even at areas of 0
    and 1.

    Args:
        auc: Area, in [0, 1].
        positives: Number m of positive samples.
        negatives: Number n of negative samples.

    Examples:
        >>> print(auc_estimate(1.0, 50, 50))
        1.000 [0.960, 1.000]
    """
    if positives < 1 or negatives < 1 or not 0 <= auc <= 1:
        raise UsageError(
            f"an area under the ROC curve is in [0, 1] and needs samples of both kinds, "
            f"got {auc} from {positives} positives and {negatives} negatives."
        )
    mean_size = (positives + negatives) / 2

    def outside(theta: float) -> bool:
        shape = 1 + (mean_size - 1) * ((1 - theta) / (2 - theta) + theta / (1 + theta))
        return abs(auc - theta) > Z95 * sqrt(max(0.0, theta * (1 - theta) * shape / (positives * negatives)))

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
