"""Learning rate of each step of a run."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["Schedule", "learning_rate"]

Schedule = Literal["one-cycle", "cosine", "step", "constant"]


def learning_rate(schedule: Schedule, peak: float, step: int, total: int, *, warmup: float = 0.2) -> float:
    """Return the learning rate of step `step` out of `total`.

    `one-cycle` rises linearly to the peak over the first `warmup` share of the steps and falls linearly to zero;
    `cosine` falls from the peak to zero along half a cosine; `step` divides by ten after one half and again after
    three quarters; `constant` stays.

    Examples:
        >>> [round(learning_rate("one-cycle", 1.0, step, 10, warmup=0.2), 3) for step in (0, 1, 2, 9)]
        [0.5, 1.0, 0.875, 0.0]
        >>> learning_rate("step", 1.0, 0, 10), learning_rate("step", 1.0, 5, 10)
        (1.0, 0.1)
    """
    if schedule == "constant":
        return peak
    if schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * step / total))
    if schedule == "step":
        return peak * 0.1 ** ((step >= total / 2) + (step >= 3 * total / 4))
    rise = max(1, round(warmup * total))
    if step < rise:
        return peak * (step + 1) / rise
    return peak * (total - 1 - step) / max(1, total - rise)
