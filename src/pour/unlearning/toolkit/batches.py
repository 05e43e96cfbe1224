"""Ways to walk several loaders in one run: together, in turn, repeated, relabelled, or with a number on each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pour.training.loop import Epochs

__all__ = ["InTurn", "Later", "Relabelled", "Repeated", "Stamped", "Together"]


class Together:
    """Several loaders side by side: the n-th step has the n-th batch of each, in one tuple.

    A loader that is shorter than ``length`` starts again, in a new order.

    Example:
        >>> class Numbers:
        ...     def __init__(self, *values):
        ...         self.values = values
        ...     def __len__(self):
        ...         return len(self.values)
        ...     def epoch(self, number):
        ...         return iter([(value,) for value in self.values])
        >>> list(Together(Numbers(1, 2, 3), Numbers(10, 20)).epoch(0))
        [(1, 10), (2, 20), (3, 10)]
        >>> list(Together(Numbers(1, 2, 3), Numbers(10, 20), length=2).epoch(0))
        [(1, 10), (2, 20)]
    """

    def __init__(self, *loaders: Epochs, length: int | None = None) -> None:
        self._loaders = loaders
        self._length = max(map(len, loaders)) if length is None else length

    def __len__(self) -> int:
        """Steps to an epoch."""
        return self._length

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The steps of epoch ``number``."""
        streams = [self._stream(loader, number) for loader in self._loaders]
        for _, *batches in zip(range(self._length), *streams, strict=False):
            yield tuple(part for batch in batches for part in batch)

    def _stream(self, loader: Epochs, number: int) -> Iterator[tuple[Any, ...]]:
        rounds = -(-self._length // len(loader))
        for turn in range(rounds):
            yield from loader.epoch(number * rounds + turn)


class InTurn:
    """Passes over loaders, one after the other; each batch is followed by what belongs to its pass.

    The n-th pass of epoch e is that loader's epoch ``e * passes + n``, so a loader that comes twice is shuffled anew.

    Args:
        passes: each a loader and further values for all of its batches.
    """

    def __init__(self, passes: Sequence[tuple[Epochs, tuple[Any, ...]]]) -> None:
        self._passes = tuple(passes)

    def __len__(self) -> int:
        """Batches of all passes."""
        return sum(len(loader) for loader, _ in self._passes)

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of epoch ``number``."""
        for position, (loader, extra) in enumerate(self._passes):
            for batch in loader.epoch(number * len(self._passes) + position):
                yield (*batch, *extra)


class Later:
    """A loader from epoch ``first`` on, for a method that trains in rounds."""

    def __init__(self, batches: Epochs, first: int) -> None:
        self._batches = batches
        self._first = first

    def __len__(self) -> int:
        """Batches to an epoch."""
        return len(self._batches)

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of epoch ``first + number``."""
        return self._batches.epoch(self._first + number)


class Repeated:
    """Every batch ``times`` times in a row."""

    def __init__(self, batches: Epochs, times: int) -> None:
        self._batches = batches
        self._times = times

    def __len__(self) -> int:
        """Batches to an epoch."""
        return len(self._batches) * self._times

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of epoch ``number``."""
        for batch in self._batches.epoch(number):
            for _ in range(self._times):
                yield batch


class Stamped:
    """Every batch followed by a number that moves with the run, such as a weight of the loss.

    Args:
        batches: the loader.
        value: gives the number of a step, counted from the start of the run.
    """

    def __init__(self, batches: Epochs, value: Callable[[int], float]) -> None:
        self._batches = batches
        self._value = value

    def __len__(self) -> int:
        """Batches to an epoch."""
        return len(self._batches)

    def epoch(self, number: int) -> Iterator[tuple[Any, ...]]:
        """The batches of epoch ``number``."""
        first = number * len(self._batches)
        for step, batch in enumerate(self._batches.epoch(number), start=first):
            yield (*batch, torch.tensor(self._value(step)))


class Relabelled:
    """Images with random labels instead of their own, drawn anew in every epoch from ``labels`` alike."""

    def __init__(self, batches: Epochs, labels: Sequence[int], seed: int) -> None:
        self._batches = batches
        self._choices = np.asarray(labels, np.int64)
        self._seed = seed

    def __len__(self) -> int:
        """Batches to an epoch."""
        return len(self._batches)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of epoch ``number``, with the same labels at every call."""
        rng = np.random.default_rng([self._seed, number])
        for images, *_ in self._batches.epoch(number):
            drawn = torch.from_numpy(rng.choice(self._choices, size=len(images)))
            yield images, drawn.to(images.device)
