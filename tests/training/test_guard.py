"""When an optimisation has run away."""

from __future__ import annotations

import pytest

from pour.errors import DivergenceError
from pour.training.guard import DivergenceGuard


def judged(losses: list[float], group: int = 1) -> DivergenceGuard:
    """A guard that has seen ``losses``, so many at a time."""
    guard = DivergenceGuard()
    for first in range(0, len(losses), group):
        seen = losses[first : first + group]
        guard.check(seen, first_step=first, learning_rates=[0.1] * len(seen))
    return guard


@pytest.mark.parametrize("group", [1, 50])
def test_an_explosion_in_the_first_steps_is_caught(group: int) -> None:
    with pytest.raises(DivergenceError, match=r"exploded to -2.21e\+13 at step 4"):
        judged([-2.0, -4.23, -27.7, -975.0, -2.21e13], group)
    with pytest.raises(DivergenceError, match="exploded to 301 at step 1"):
        judged([3.0, 301.0], group)


@pytest.mark.parametrize(
    "losses",
    [
        [1e6, 2.0, 1e8],
        [1e-9, 99.0],
        [0.0, 0.0, 90.0, 3000.0, 2e5, 1.9e7],
        [2.3, 2.5, 40.0, 3.0, 2.0, 3999.0],
    ],
)
def test_large_beginnings_and_rises_are_not(losses: list[float]) -> None:
    judged(losses)


def test_later_losses_are_held_against_the_first_five() -> None:
    with pytest.raises(DivergenceError, match=r"exploded to 4.1e\+03 at step 6"):
        judged([2.3, 2.5, 40.0, 3.0, 2.0, 3000.0, 4100.0])
