"""Values that the paper prints, and whether a measured value differs from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pour._records import read, record
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.bench.columns import Column

__all__ = [
    "Difference",
    "Entry",
    "Examples",
    "differs",
    "published",
    "published_examples",
    "published_notes",
    "unlike_published",
]

Difference = Literal["above", "below"]

# Half of the last printed digit: the paper prints two decimals.
_ROUNDING = 0.005
_DEVIATIONS = 2.0


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One metric of a row, measured or printed, in the column's unit."""

    mean: float
    std: float | None = None
    """Sample deviation; None for a single value."""
    n: int | None = 1
    """Number of values; None for a printed value."""
    mark: Literal["best", "second"] | None = None
    difference: Difference | None = None
    """Side on which the value is more than two deviations from the value that it is compared with."""
    change: float | None = None
    """Mean difference from the original model, which a table of classes shows in brackets."""


@record()
class PaperTable:
    """Table of methods on one dataset."""

    dataset: str
    table: str
    forget: tuple[int, ...]
    """Forgotten classes. The paper does not name them all."""
    architectures: tuple[str, ...] = ()
    """Networks that the table is about; empty for any."""
    runs: int | None = None
    mean: Mapping[str, Mapping[str, int | float]]
    """Means by method and column."""
    std: Mapping[str, Mapping[str, int | float]]
    note: str = ""
    """Difference between the paper's setting and pour's."""


@record()
class Examples:
    """Classes that the paper forgets from one model of a task, before and after."""

    label: str
    rows: Mapping[str, Mapping[str, int | float]]
    """Values by class and column."""
    dataset: str | None = None
    note: str = ""
    otherwise: str = ""
    """Sentence for results on another dataset."""

    def note_for(self, dataset: str) -> str:
        """Return the note below a table of results on a dataset."""
        alike = self.dataset in (None, dataset)
        return f"{self.label}: {self.note}" if alike else f"{self.label}: {self.note} {self.otherwise}"


@record()
class _Paper:
    """Content of `published.json`."""

    source: str
    tables: tuple[PaperTable, ...]
    examples: Mapping[str, Examples] = field(default_factory=dict)
    """Examples by task."""


@cache
def _paper() -> _Paper:
    return read(_Paper, Path(__file__).with_name("published.json"))


def _tables(dataset: str) -> list[PaperTable]:
    return [table for table in _paper().tables if table.dataset == dataset]


def published(dataset: str, method: str, column: Column) -> Entry | None:
    """Return the printed value of a method on a dataset, or None without such a value.

    Examples:
        >>> from pour.bench.columns import find_column
        >>> entry = published("cifar10", "pour-d", find_column("acc_r"))
        >>> entry.mean, entry.std
        (92.86, 1.02)
        >>> round(published("cifar10", "pour-p", find_column("acc_r_change")).mean, 2)
        0.5
    """
    key = column.line if column.change else column.key
    for table in _tables(dataset):
        mean = table.mean.get(method, {}).get(key)
        if mean is None:
            continue
        if not column.change:
            return Entry(mean=mean, std=table.std.get(method, {}).get(key), n=None)
        before = table.mean.get("original", {}).get(key)
        # Method and original share their seeds, so the deviation of the change is unknown.
        return None if before is None else Entry(mean=mean - before, n=None)
    return None


def published_examples(task: str) -> Examples:
    """Return the classes that the paper forgets from one model of a task.

    Raises:
        UsageError: The paper prints nothing about the task.
    """
    examples = _paper().examples.get(task)
    if examples is None:
        raise UsageError(f'The paper prints no results of the task {task}; leave against="paper" out.')
    return examples


def published_notes(dataset: str) -> tuple[str, ...]:
    """Return the differences between the paper's setting and pour's on a dataset.

    Examples:
        >>> published_notes("cifar10")
        ()
    """
    return tuple(table.note for table in _tables(dataset) if table.note)


def unlike_published(dataset: str, forget: tuple[int, ...], architecture: str) -> str | None:
    """Return the reason why results do not compare with the paper's, or None if they do.

    Args:
        dataset: Name of the dataset.
        forget: Forgotten classes.
        architecture: Name of the network.

    Raises:
        UsageError: The paper prints nothing about the dataset.

    Examples:
        >>> unlike_published("cifar10", (0,), "resnet18")
        >>> unlike_published("cifar10", (1,), "resnet18")
        'The printed values are taken to be of forgetting class 0, so nothing is marked.'
    """
    tables = _tables(dataset)
    if not tables:
        raise UsageError(f'The paper prints no results on {dataset}; leave against="paper" out.')
    for table in tables:
        if table.forget != forget:
            named = ", ".join(map(str, table.forget))
            return f"The printed values are taken to be of forgetting class {named}, so nothing is marked."
        if table.architectures and architecture not in table.architectures:
            return f"The printed values are of {table.architectures[0]}, so nothing is marked."
    return None


def differs(measured: Entry, other: Entry) -> Difference | None:
    """Return the side on which a measured mean is more than two deviations from another one, or None.

    The deviation is the root of the sum of both squared deviations, and half of the last printed digit is allowed
    besides. Without any deviation the result is None.

    Examples:
        >>> printed = Entry(mean=92.86, std=1.02)
        >>> differs(Entry(mean=94.8, std=0.1), printed), differs(Entry(mean=96.0, std=0.1), printed)
        (None, 'above')
    """
    deviations = [value for value in (measured.std, other.std) if value is not None]
    if not deviations:
        return None
    allowed = _DEVIATIONS * math.hypot(*deviations) + _ROUNDING
    if abs(measured.mean - other.mean) <= allowed:
        return None
    return "above" if measured.mean > other.mean else "below"
