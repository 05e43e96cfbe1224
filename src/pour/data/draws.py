"""Seeded choices of rows by their labels."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pour.data.dataset import LabelArray

__all__ = ["rows_per_class", "set_apart", "stratified_rows"]

_TEST_SHARE = 5


def rows_per_class(labels: LabelArray, counts: Mapping[int, int], generator: np.random.Generator) -> LabelArray:
    """Return at most `counts[label]` random rows of each class, class by class in the order of `counts`.

    Examples:
        >>> rows_per_class(np.array([0, 1, 1, 2]), {1: 5, 0: 1}, np.random.default_rng(0)).tolist()
        [1, 2, 0]
    """
    drawn = [generator.permutation(np.flatnonzero(labels == label))[:count] for label, count in counts.items()]
    return np.concatenate(drawn) if drawn else np.empty(0, np.int64)


def stratified_rows(labels: LabelArray, count: int, seed: int) -> LabelArray:
    """Return `count` random rows in the classes' proportions, sorted.

    Every class gets at least one row if `count` allows it. All rows are returned if there are at most `count`.

    Examples:
        >>> rows = stratified_rows(np.array([0, 0, 0, 0, 1, 1]), 3, seed=0)
        >>> np.array([0, 0, 0, 0, 1, 1])[rows]
        array([0, 0, 1])
    """
    if count >= len(labels):
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # The places are evenly spaced over the rows sorted by class, so the share of each class is off by at most one row.
    places = ((np.arange(count) + 0.5) * len(labels) / count).astype(np.int64)
    present, first = np.unique(labels[order], return_index=True)
    missing = first[~np.isin(present, labels[order[places]])]
    if len(missing) and count >= len(present):
        places = _include(places, missing, labels[order])
    return np.sort(order[places])


def set_apart(labels: LabelArray, names: Sequence[bytes]) -> tuple[LabelArray, LabelArray]:
    """Return the rows for training, and the rows of a fifth of each class for testing.

    A digest of the names decides the rows. So a sample remains in its part if samples are added to other classes.

    Args:
        labels: Class of each sample.
        names: Name of each sample, such as the name of its file.

    Examples:
        >>> [rows.tolist() for rows in set_apart(np.zeros(5, int), [b"a", b"b", b"c", b"d", b"e"])]
        [[0, 1, 2, 4], [3]]
    """
    digests = [hashlib.sha256(name).digest() for name in names]
    is_test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = sorted(np.flatnonzero(labels == label).tolist(), key=digests.__getitem__)
        is_test[rows[: len(rows) // _TEST_SHARE]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _include(places: LabelArray, missing: LabelArray, sorted_labels: LabelArray) -> LabelArray:
    """Replace places of the most frequent class by the places in `missing`, one after another."""
    for place in missing:
        present, counts = np.unique(sorted_labels[places], return_counts=True)
        most_frequent = np.flatnonzero(sorted_labels[places] == present[counts.argmax()])
        places = np.append(np.delete(places, most_frequent[-1]), place)
    return places
