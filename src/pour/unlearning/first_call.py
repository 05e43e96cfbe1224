"""Results of every method at its defaults on six ordinary networks, as `benchmarks/first_call.py` stored them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["FirstCall", "first_call"]


@dataclass(frozen=True, kw_only=True)
class FirstCall:
    """Result of a method on six networks that were trained on scikit-learn's digits, one class forgotten.

    Means and worst values are over the networks on which the method did not fail.
    """

    networks: int
    """Number of networks."""
    failed: int
    """Number of networks on which the method raised an error, such as a divergence."""
    good: int = 0
    """Number of networks that keep at most 3 % of the class and lose at most 1.5 points on the other classes."""
    change_acc_r: float | None = None
    """Mean change of the accuracy on the other classes, in points; None if the method failed on all networks."""
    worst_change_acc_r: float | None = None
    """Lowest change of the accuracy on the other classes, in points."""
    acc_f: float | None = None
    """Mean accuracy on test images of the forgotten class, in percent; None if the method failed on all networks."""
    worst_acc_f: float | None = None
    """Highest accuracy on test images of the forgotten class, in percent."""
    seconds: float | None = None
    """Mean time on one CPU core."""

    def __str__(self) -> str:
        """Return the accuracy on the forgotten class and the change of the accuracy on the other classes.

        Examples:
            >>> str(FirstCall(networks=6, failed=0, acc_f=41.2, change_acc_r=-2.94))
            '41 % / -2.9'
        """
        if self.acc_f is None or self.change_acc_r is None:
            return f"failed on {self.failed} of {self.networks}"
        failed = f", failed on {self.failed} of {self.networks}" if self.failed else ""
        return f"{self.acc_f:.0f} % / {self.change_acc_r:+.1f}{failed}"


def first_call(method: str) -> FirstCall | None:
    """Return the stored result of the method with that name, or None if no result is stored.

    Examples:
        >>> first_call("somebody's") is None
        True
    """
    return _stored().get(method)


@cache
def _stored() -> dict[str, FirstCall]:
    file = Path(__file__).with_name("first_call.json")
    stored = json.loads(file.read_text(encoding="utf-8"))["methods"]
    names = FirstCall.__dataclass_fields__
    return {
        method: FirstCall(**{name: value for name, value in summary.items() if name in names})
        for method, summary in stored.items()
    }
