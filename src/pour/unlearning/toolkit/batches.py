"""Combine the batches of several loaders: side by side, in sequence, repeated, or with a further value per batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pour.training.loop import Epochs

__all__ = [
    "EpochsFrom",
    "from_epoch",
    "in_sequence",
    "repeated",
    "side_by_side",
    "with_random_labels",
    "with_step_value",
]


@dataclass(frozen=True)
class EpochsFrom:
    """Batches of a number of epochs, yielded by a function."""

    length: int
    """Number of batches per epoch."""
    epoch: Callable[[int], Iterator[tuple[Any, ...]]]
    """Function that yields the batches of an epoch, the same at every call."""

    def __len__(self) -> int:
        return self.length


def side_by_side(*loaders: Epochs, length: int | None = None) -> EpochsFrom:
    """Return batches that contain the batches of all loaders in one tuple.

    A loader with fewer than `length` batches starts again, in a new order.

    Args:
        loaders: Loaders.
        length: Number of batches per epoch; by default the number of the longest loader.

    Examples:
        >>> long = EpochsFrom(3, lambda number: iter([(1,), (2,), (3,)]))
        >>> short = EpochsFrom(2, lambda number: iter([(10,), (20,)]))
        >>> list(side_by_side(long, short).epoch(0))
        [(1, 10), (2, 20), (3, 10)]
        >>> list(side_by_side(long, short, length=2).epoch(0))
        [(1, 10), (2, 20)]
    """
    steps = max(map(len, loaders)) if length is None else length

    def stream(loader: Epochs, number: int) -> Iterator[tuple[Any, ...]]:
        rounds = -(-steps // len(loader))
        for position in range(rounds):
            yield from loader.epoch(number * rounds + position)

    def epoch(number: int) -> Iterator[tuple[Any, ...]]:
        for _, *batches in zip(range(steps), *(stream(loader, number) for loader in loaders), strict=False):
            yield tuple(part for batch in batches for part in batch)

    return EpochsFrom(steps, epoch)


def in_sequence(passes: Sequence[tuple[Epochs, tuple[Any, ...]]]) -> EpochsFrom:
    """Return the batches of one loader after the other, each batch extended by the values of its pass.

    The n-th pass of epoch e is epoch `e * passes + n` of its loader, so a repeated loader has another order.

    Args:
        passes: Pairs of a loader and the values for all of its batches.
    """

    def epoch(number: int) -> Iterator[tuple[Any, ...]]:
        for position, (loader, values) in enumerate(passes):
            for batch in loader.epoch(number * len(passes) + position):
                yield (*batch, *values)

    return EpochsFrom(sum(len(loader) for loader, _ in passes), epoch)


def from_epoch(batches: Epochs, first: int) -> EpochsFrom:
    """Return the epochs of a loader from epoch `first`, for a method that calls the training loop several times."""
    return EpochsFrom(len(batches), lambda number: batches.epoch(first + number))


def repeated(batches: Epochs, times: int) -> EpochsFrom:
    """Return batches that each occur `times` times in a row."""

    def epoch(number: int) -> Iterator[tuple[Any, ...]]:
        return (batch for batch in batches.epoch(number) for _ in range(times))

    return EpochsFrom(len(batches) * times, epoch)


def with_step_value(batches: Epochs, value: Callable[[int], float]) -> EpochsFrom:
    """Return batches extended by a number that changes during the run, such as a weight of the loss.

    Args:
        batches: Loader.
        value: Function that returns the number of a step, counted from the start of the run.
    """

    def epoch(number: int) -> Iterator[tuple[Any, ...]]:
        for step, batch in enumerate(batches.epoch(number), start=number * len(batches)):
            yield (*batch, torch.tensor(value(step)))

    return EpochsFrom(len(batches), epoch)


def with_random_labels(batches: Epochs, labels: Sequence[int], seed: int) -> EpochsFrom:
    """Return batches of images with random labels, drawn uniformly from `labels` and again in every epoch."""

    def epoch(number: int) -> Iterator[tuple[Any, ...]]:
        rng = np.random.default_rng([seed, number])
        for images, *_ in batches.epoch(number):
            drawn = torch.from_numpy(rng.choice(np.asarray(labels, np.int64), size=len(images)))
            yield images, drawn.to(images.device)

    return EpochsFrom(len(batches), epoch)
