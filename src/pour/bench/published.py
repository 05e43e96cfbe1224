"""The paper's printed numbers, and whether a measured one differs from them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.bench.columns import Column

__all__ = ["Difference", "Published", "differs", "published", "published_notes", "unlike_published"]

Difference = Literal["above", "below"]

# The paper prints two decimals: a value may be off by half of the last one.
_ROUNDING = 0.005
_DEVIATIONS = 2.0


@dataclass(frozen=True)
class Published:
    """A printed mean, in the column's unit, and its deviation over runs where one was printed."""

    mean: float
    std: float | None


@cache
def _tables() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return found


def published(dataset: str, method: str, column: Column) -> Published | None:
    """What the paper prints for a method on a dataset, or None.

    Example:
        >>> from pour.bench.columns import COLUMNS
        >>> published("cifar10", "pour-d", COLUMNS["acc_r"])
        Published(mean=92.86, std=1.02)
        >>> round(published("cifar10", "pour-p", COLUMNS["acc_r_change"]).mean, 2)
        0.5
    """
    tables: list[dict[str, Any]] = _tables().get(dataset, [])
    key = column.line if column.change else column.key
    for table in tables:
        mean = table["mean"].get(method, {}).get(key)
        if mean is None:
            continue
        if not column.change:
            return Published(mean, table["std"].get(method, {}).get(key))
        before = table["mean"].get("original", {}).get(key)
        # Method and original share their seeds, so the two deviations do not add up to that of the change.
        return None if before is None else Published(mean - before, None)
    return None


def published_notes(dataset: str) -> tuple[str, ...]:
    """What a reader must know before comparing with the paper's numbers on a dataset.

    Example:
        >>> published_notes("cifar10")
        ()
    """
    tables: list[dict[str, Any]] = _tables().get(dataset, [])
    return tuple(table["note"] for table in tables if "note" in table)


def unlike_published(dataset: str, forget: tuple[int, ...], architecture: str) -> str | None:
    """Why results cannot be held against the paper's on that dataset, in a sentence; None where they can.

    Args:
        dataset: by name.
        forget: the classes that were forgotten.
        architecture: of the networks.

    Raises:
        UsageError: the paper prints nothing of the dataset.

    Example:
        >>> unlike_published("cifar10", (0,), "resnet18")
        >>> unlike_published("cifar10", (1,), "resnet18")
        'The printed values are taken to be of forgetting class 0, so nothing is marked.'
    """
    tables: list[dict[str, Any]] = _tables().get(dataset, [])
    if not tables:
        raise UsageError(f"The paper prints no results on {dataset}; leave --against paper out.")
    for table in tables:
        if tuple(table["forget"]) != forget:
            named = ", ".join(map(str, table["forget"]))
            return f"The printed values are taken to be of forgetting class {named}, so nothing is marked."
        if architecture not in table.get("architectures", [architecture]):
            return f"The printed values are of {table['architectures'][0]}, so nothing is marked."
    return None


def differs(mean: float, std: float | None, paper: Published) -> Difference | None:
    """Whether a measured mean is more than two deviations from the printed one, and on which side.

    Both sides' deviations count, as the root of the sum of their squares, and half of the last printed digit. Where
    neither is known nothing is said.

    Example:
        >>> differs(94.8, 0.1, Published(92.86, 1.02)), differs(96.0, 0.1, Published(92.86, 1.02))
        (None, 'above')
    """
    deviations = [value for value in (std, paper.std) if value is not None]
    if not deviations:
        return None
    allowed = _DEVIATIONS * math.hypot(*deviations) + _ROUNDING
    if abs(mean - paper.mean) <= allowed:
        return None
    return "above" if mean > paper.mean else "below"
