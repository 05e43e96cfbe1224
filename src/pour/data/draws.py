"""Seeded choices of rows by their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.data.dataset import LabelArray

__all__ = ["rows_per_class", "stratified_rows"]


def rows_per_class(labels: LabelArray, counts: Mapping[int, int], generator: np.random.Generator) -> LabelArray:
    """Draw at most ``counts[label]`` rows of each class, class after class in the order of ``counts``.

    Example:
        >>> rows_per_class(np.array([0, 1, 1, 2]), {1: 5, 0: 1}, np.random.default_rng(0)).tolist()
        [1, 2, 0]
    """
    drawn = [generator.permutation(np.flatnonzero(labels == label))[:count] for label, count in counts.items()]
    return np.concatenate(drawn) if drawn else np.empty(0, np.int64)


def stratified_rows(labels: LabelArray, count: int, seed: int) -> LabelArray:
    """Draw ``count`` rows in the classes' proportions and sort them.

    Every class gets at least one row if ``count`` allows it. All rows are returned if there are at most ``count``.

    Example:
        >>> rows = stratified_rows(np.array([0, 0, 0, 0, 1, 1]), 3, seed=0)
        >>> np.array([0, 0, 0, 0, 1, 1])[rows]
        array([0, 0, 1])
    """
    if count >= len(labels):
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    # The places are evenly spaced over the rows sorted by class, so each class's share is exact to within one row.
    places = ((np.arange(count) + 0.5) * len(labels) / count).astype(np.int64)
    present, first = np.unique(labels[order], return_index=True)
    missing = first[~np.isin(present, labels[order[places]])]
    if len(missing) and count >= len(present):
        places = _include(places, missing, labels[order])
    return np.sort(order[places])


def _include(places: LabelArray, missing: LabelArray, sorted_labels: LabelArray) -> LabelArray:
    """Replace places of the most frequent class by the places in ``missing``, one after another."""
    for place in missing:
        present, counts = np.unique(sorted_labels[places], return_counts=True)
        most_frequent = np.flatnonzero(sorted_labels[places] == present[counts.argmax()])
        places = np.append(np.delete(places, most_frequent[-1]), place)
    return places
