from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from pour.errors import UsageError
from pour.training.loop import Epochs, as_epochs
from pour.training.run import Run
from pour.unlearning.toolkit.batches import (
    from_epoch,
    in_sequence,
    repeated,
    side_by_side,
    with_random_labels,
    with_step_value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


class Named:
    """Batches that say where they come from: (name, epoch, position)."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self.length = length

    def __len__(self) -> int:
        return self.length

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        for position in range(self.length):
            yield ((self.name, number, position),)


def test_side_by_side_starts_a_short_loader_again_in_a_new_order() -> None:
    both = side_by_side(Named("long", 5), Named("short", 2))
    assert len(both) == 5
    first, second = list(both.epoch(0)), list(both.epoch(1))
    assert [short for _, short in first] == [
        ("short", 0, 0),
        ("short", 0, 1),
        ("short", 1, 0),
        ("short", 1, 1),
        ("short", 2, 0),
    ]
    assert [long for long, _ in first] == [("long", 0, position) for position in range(5)]
    assert not {short for _, short in first} & {short for _, short in second}


def test_side_by_side_stops_where_told() -> None:
    both = side_by_side(Named("long", 5), Named("short", 2), length=2)
    assert len(both) == 2
    assert list(both.epoch(3)) == [(("long", 3, 0), ("short", 3, 0)), (("long", 3, 1), ("short", 3, 1))]


def test_in_sequence_walks_passes_in_order_each_with_its_own_epoch() -> None:
    a, b = Named("a", 1), Named("b", 2)
    plan = in_sequence([(a, ("first",)), (b, ("second",)), (a, ("first",))])
    assert len(plan) == 4
    assert list(plan.epoch(1)) == [
        (("a", 3, 0), "first"),
        (("b", 4, 0), "second"),
        (("b", 4, 1), "second"),
        (("a", 5, 0), "first"),
    ]


def test_from_epoch_and_repeated() -> None:
    assert list(from_epoch(Named("a", 1), 7).epoch(2)) == [(("a", 9, 0),)]
    assert [position for ((_, _, position),) in repeated(Named("a", 2), 3).epoch(0)] == [0, 0, 0, 1, 1, 1]
    assert len(repeated(Named("a", 2), 3)) == 6


def test_with_step_value_counts_steps_over_epochs() -> None:
    batches = with_step_value(Named("a", 3), lambda step: step / 10)
    values = [float(batch[-1]) for number in range(2) for batch in batches.epoch(number)]
    assert values == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.5])


def test_with_random_labels_draws_from_the_labels_given_anew_in_every_epoch() -> None:
    own = [(torch.zeros(200, 1), torch.full((200,), 3))]
    drawn = with_random_labels(as_epochs(own, Run(device="cpu", progress=False)), [0, 2, 5], seed=4)
    (_, first), (_, second), (_, again) = (next(iter(drawn.epoch(number))) for number in (0, 1, 0))
    assert set(first.tolist()) == {0, 2, 5}
    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert torch.bincount(first)[[0, 2, 5]].min() > 40


def test_own_batches_become_epochs_and_empty_ones_are_refused() -> None:
    run = Run(device="cpu", progress=False)
    assert isinstance(as_epochs([(torch.zeros(1),)], run), Epochs)
    with pytest.raises(UsageError, match="no batches"):
        as_epochs([], run)
