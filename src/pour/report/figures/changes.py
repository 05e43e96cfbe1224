"""How the accuracy of each class changed, for one request to forget or for several."""

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
    from torch import Tensor

__all__ = ["AccuracyChange", "ChangesData", "changes_data", "draw_changes"]

_MOST = 24


@dataclass(frozen=True, kw_only=True)
class AccuracyChange:
    """What one request did to each class, accuracy after less accuracy before."""

    name: str
    """What was forgotten: a class, a text prompt, a concept."""
    forgotten: tuple[int, ...]
    """The classes that it names."""
    change: NDArray[np.float64]
    """(C,); NaN for a class without images."""
    low: NDArray[np.float64]
    """(C,) lower end of the 95 % interval, as if the two accuracies were independent."""
    high: NDArray[np.float64]
    """(C,) upper end."""


@dataclass(frozen=True, kw_only=True)
class ChangesData:
    """The changes of one or several requests."""

    requests: tuple[AccuracyChange, ...]
    classes: tuple[str, ...]


def changes_data(
    before: Tensor, after: Mapping[str, Tensor], *, classes: Sequence[str], forgotten: Mapping[str, Sequence[int]]
) -> ChangesData:
    """Compare confusion matrices before and after each request.

    Args:
        before: (C, C) counts of the original, as :func:`pour.metrics.confusion_matrix` gives them.
        after: (C, C) counts by request.
        classes: names of all classes.
        forgotten: by request, the classes that should go.

    Example:
        >>> import torch
        >>> before, after = torch.tensor([[9, 1], [2, 8]]), torch.tensor([[1, 9], [1, 9]])
        >>> data = changes_data(before, {"a cat": after}, classes=["cat", "dog"], forgotten={"a cat": [0]})
        >>> data.requests[0].change.round(2)
        array([-0.8,  0.1])
    """
    if not after:
        raise UsageError("There is no request to compare with; give at least one confusion matrix after forgetting.")
    size = len(classes)
    for name, counts in {"before": before, **after}.items():
        if counts.shape != (size, size):
            raise UsageError(f"The counts of {name} are {tuple(counts.shape)}, but there are {size} class names.")
    missing = [name for name in after if name not in forgotten]
    if missing:
        raise UsageError(f"forgotten does not say which classes {missing[0]!r} names.")
    requests = tuple(
        _change(name, before.cpu(), counts.cpu(), tuple(forgotten[name])) for name, counts in after.items()
    )
    return ChangesData(requests=requests, classes=tuple(classes))


def draw_changes(data: ChangesData, *, theme: Theme = "light") -> Figure:
    """Draw a line of bars to each request, its own classes in dark red, in percentage points."""
    labels = _shown(data)
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
                axes.set_ylabel(
                    plain_text(request.name, length=18), rotation=0, ha="right", va="center", color=style.forgotten
                )
            else:
                axes.set_title(plain_text(f"forgotten: {request.name}", length=60), color=style.forgotten)
                axes.set_ylabel("change")
        names = [plain_text(data.classes[label], length=18) for label in labels]
        gone = [place for place, label in enumerate(labels) if count == 1 and label in data.requests[0].forgotten]
        style.name_places(panels.flat[-1], names, gone, width=FULL_WIDTH - (0.6 if count == 1 else 1.2))
        style.note(figure, notes)
        return finish(
            figure, f"Change in accuracy by class: {'; '.join(_said(request, data) for request in data.requests)}."
        )


def _said(request: AccuracyChange, data: ChangesData) -> str:
    own = request.change[list(request.forgotten)]
    rest = np.delete(request.change, list(request.forgotten))
    middle = f"{100 * np.nanmean(rest):+.1f}" if np.isfinite(rest).any() else "none"
    fall = f"{100 * np.nanmean(own):+.1f}" if np.isfinite(own).any() else "none"
    return f"{listed([request.name])} {fall} points on its own classes, {middle} on the others"


def _shown(data: ChangesData) -> list[int]:
    size = len(data.classes)
    if size <= _MOST:
        return list(range(size))
    own = {label for request in data.requests for label in request.forgotten}
    largest = np.max([np.nan_to_num(np.abs(request.change)) for request in data.requests], axis=0)
    others = [label for label in np.argsort(-largest, kind="stable").tolist() if label not in own]
    chosen = [*sorted(own)[:_MOST], *others][:_MOST]
    # Among so many, the size of the change is the order that tells something.
    return sorted(chosen, key=lambda label: float(np.nan_to_num(data.requests[0].change[label])))


def _change(name: str, before: Tensor, after: Tensor, forgotten: tuple[int, ...]) -> AccuracyChange:
    size = len(before)
    change, low, high = (np.full(size, np.nan) for _ in range(3))
    for label in range(size):
        old_n, new_n = int(before[label].sum()), int(after[label].sum())
        if not old_n or not new_n:
            continue
        old, new = wilson(int(before[label, label]), old_n), wilson(int(after[label, label]), new_n)
        moved = rate_difference(new, old)
        change[label], low[label], high[label] = moved.value, moved.low, moved.high
    return AccuracyChange(name=name, forgotten=forgotten, change=change, low=low, high=high)
