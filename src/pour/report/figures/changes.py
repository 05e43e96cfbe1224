"""Change of each class's accuracy by one or several requests to forget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pour.errors import UsageError
from pour.metrics.intervals import rate_difference, wilson
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, listed, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["AccuracyChange", "ChangesData", "changes_data", "draw_changes"]

_MOST = 24


@dataclass(frozen=True, kw_only=True)
class AccuracyChange:
    """Accuracy of each class after a request minus its accuracy before."""

    name: str
    """Name of the request: a class, a text prompt or a concept."""
    forgotten: tuple[int, ...]
    """Indices of the classes that the request forgets."""
    change: NDArray[np.float64]
    """Change of each class, (C,); NaN for a class without images."""
    low: NDArray[np.float64]
    """Lower ends of the 95 % intervals for independent accuracies, (C,)."""
    high: NDArray[np.float64]
    """Upper ends, (C,)."""


@dataclass(frozen=True, kw_only=True)
class ChangesData:
    """Changes by one or several requests."""

    requests: tuple[AccuracyChange, ...]
    classes: tuple[str, ...]


def changes_data(
    images: Sequence[int],
    before: Sequence[int],
    after: Mapping[str, Sequence[int]],
    *,
    classes: Sequence[str],
    forgotten: Mapping[str, Sequence[int]],
) -> ChangesData:
    """Compare the right answers before and after each request.

    Args:
        images: Number of images of each class, (C,).
        before: Number of right answers of the original model for each class, (C,).
        after: Numbers of right answers after each request, by its name.
        classes: Names of all classes.
        forgotten: Indices of the classes that each request forgets, by its name.

    Examples:
        >>> data = changes_data([10, 10], [9, 8], {"a cat": [1, 9]}, classes=["cat", "dog"], forgotten={"a cat": [0]})
        >>> data.requests[0].change.round(2)
        array([-0.8,  0.1])
    """
    if not after:
        raise UsageError("There is no request to compare with; give at least one model's answers after forgetting.")
    for name, counts in {"images": images, "before": before, **after}.items():
        if len(counts) != len(classes):
            raise UsageError(f"The counts of {name} are of {len(counts)} classes, but there are {len(classes)} names.")
    missing = [name for name in after if name not in forgotten]
    if missing:
        raise UsageError(f"forgotten does not say which classes {missing[0]!r} names.")
    requests = []
    for name, right in after.items():
        ends = np.full((3, len(classes)), np.nan)
        for label, n in enumerate(images):
            if n:
                change = rate_difference(wilson(right[label], n), wilson(before[label], n))
                ends[:, label] = change.value, change.low, change.high
        labels = tuple(forgotten[name])
        requests.append(AccuracyChange(name=name, forgotten=labels, change=ends[0], low=ends[1], high=ends[2]))
    return ChangesData(requests=tuple(requests), classes=tuple(classes))


def draw_changes(data: ChangesData, *, theme: Theme = "light") -> Figure:
    """Draw one row of bars per request in percentage points, with its classes in dark red."""
    labels = _largest(data)
    notes = ["Accuracy after less before, in percentage points; whiskers: 95 %."]
    if len(labels) < len(data.classes):
        notes.append(f"The {len(labels)} largest changes of {len(data.classes):,} classes.")
    count = len(data.requests)
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 0.85 + (1.7 if count == 1 else 0.95 * count))
        panels = figure.subplots(count, 1, squeeze=False, sharex=True, sharey=True)
        places = np.arange(len(labels))
        for axes, request in zip(panels.flat, data.requests, strict=True):
            change = 100 * request.change[labels]
            reach = 100 * np.stack([request.change - request.low, request.high - request.change])[:, labels]
            colors = [style.forgotten if label in request.forgotten else style.accent for label in labels]
            axes.bar(places, change, 0.72, color=colors)
            axes.errorbar(places, change, yerr=reach, fmt="none", ecolor=style.text, elinewidth=0.7, alpha=0.8)
            axes.axhline(0, color=style.muted, linewidth=0.7)
            axes.grid(axis="y")
            axes.spines["bottom"].set_visible(False)
            axes.tick_params(axis="x", length=0)
            if count > 1:
                side = {"rotation": 0, "ha": "right", "va": "center", "color": style.forgotten}
                axes.set_ylabel(plain_text(request.name, length=18), **side)
            else:
                axes.set_title(plain_text(f"forgotten: {request.name}", length=60), color=style.forgotten)
                axes.set_ylabel("change")
        names = [plain_text(data.classes[label], length=18) for label in labels]
        forgotten = [place for place, label in enumerate(labels) if count == 1 and label in data.requests[0].forgotten]
        style.name_places(panels.flat[-1], names, forgotten, width=FULL_WIDTH - (0.6 if count == 1 else 1.2))
        text = f"Change in accuracy by class: {'; '.join(map(_description, data.requests))}."
        return finish(style, figure, text, notes)


def _description(request: AccuracyChange) -> str:
    forgotten = list(request.forgotten)
    means = [
        f"{100 * np.nanmean(values):+.1f}" if np.isfinite(values).any() else "none"
        for values in (request.change[forgotten], np.delete(request.change, forgotten))
    ]
    return f"{listed([request.name])} {means[0]} points on its own classes, {means[1]} on the others"


def _largest(data: ChangesData) -> list[int]:
    """Return the classes to draw: all of few, otherwise the forgotten ones and the largest changes, by size."""
    size = len(data.classes)
    if size <= _MOST:
        return list(range(size))
    forgotten = {label for request in data.requests for label in request.forgotten}
    largest = np.max([np.nan_to_num(np.abs(request.change)) for request in data.requests], axis=0)
    others = [label for label in np.argsort(-largest, kind="stable").tolist() if label not in forgotten]
    drawn = [*sorted(forgotten)[:_MOST], *others][:_MOST]
    return sorted(drawn, key=lambda label: float(np.nan_to_num(data.requests[0].change[label])))
