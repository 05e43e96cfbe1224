"""Confusion matrices of several models on the same images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import PercentFormatter

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ClassNames, Theme, drawing, finish, in_order, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from pour.report.figures.style import Style

__all__ = ["ConfusionData", "confusion_data", "draw_confusion"]

_NAMED_CLASSES = 25
_WRITTEN_CLASSES = 12
_SMALLEST_WRITTEN = 0.005


@dataclass(frozen=True, kw_only=True)
class ConfusionData(ClassNames):
    """Confusion matrices of several models on the same images."""

    shares: Mapping[str, NDArray[np.float64]]
    """Matrix by model: entry (i, j) is the share of class i's images with the answer j; NaN for no images."""
    counts: NDArray[np.int64]
    """Number of images of each class, (C,)."""

    def accuracy(self, name: str) -> tuple[float, float]:
        """Return a model's accuracy on forgotten and on retained images; NaN without such images."""
        right = np.nan_to_num(np.diagonal(self.shares[name])) * self.counts
        is_forgotten = np.isin(np.arange(len(self.counts)), self.forgotten)
        with np.errstate(invalid="ignore"):
            forgotten, retained = (
                float(right[side].sum() / np.float64(self.counts[side].sum())) for side in (is_forgotten, ~is_forgotten)
            )
        return forgotten, retained


def confusion_data(
    counts: Mapping[str, Tensor], *, classes: Sequence[str], forgotten: Collection[int]
) -> ConfusionData:
    """Divide the counts of `pour.metrics.confusion_matrix` by the number of images of each class.

    Args:
        counts: Counts by model, each (C, C). Models are "original", "retrained" or any name of an unlearned model.
        classes: Names of all classes.
        forgotten: Indices of the forgotten classes.

    Examples:
        >>> import torch
        >>> data = confusion_data({"original": torch.tensor([[3, 1], [0, 4]])}, classes=["cat", "dog"], forgotten=[0])
        >>> data.shares["original"][0], data.accuracy("original")
        (array([0.75, 0.25]), (0.75, 1.0))
    """
    if not counts:
        raise UsageError("There is no confusion matrix to draw; give at least one model's.")
    size = len(classes)
    matrices = {name: values.detach().cpu().numpy().astype(np.int64) for name, values in counts.items()}
    for name, matrix in matrices.items():
        if matrix.shape != (size, size):
            raise UsageError(f"The confusion matrix of {name} is {matrix.shape}, but there are {size} class names.")
        totals = next(iter(matrices.values())).sum(axis=1)
        if not np.array_equal(matrix.sum(axis=1), totals):
            raise UsageError(f"The confusion matrix of {name} counts other images than the first one.")
    with np.errstate(invalid="ignore"):
        shares = {name: matrix / totals[:, None] for name, matrix in matrices.items()}
    return ConfusionData(shares=shares, counts=totals, classes=tuple(classes), forgotten=tuple(sorted(forgotten)))


def draw_confusion(data: ConfusionData, *, theme: Theme = "light") -> Figure:
    """Draw one matrix per model: one row per true class, one column per answer, forgotten rows framed in dark red."""
    names = in_order(data.shares)
    size = len(data.classes)
    named = size <= _NAMED_CLASSES
    notes = ["Share of a true class's images; each row adds up to 100 %."]
    notes += [] if named else [f"{size:,} classes, by index."]
    with drawing(theme) as style:
        width = FULL_WIDTH if len(names) > 1 else FULL_WIDTH / 2
        longest = max(len(name) for name in data.classes) if named else 3
        figure = style.figure(width, (width - 0.9) / len(names) + 0.72 + 0.05 * min(longest, 14))
        panels = figure.subplots(1, len(names), squeeze=False)
        # Few pixels for many classes: "nearest" would drop most of them.
        smoothing = "nearest" if size <= 100 else "antialiased"
        for axes, name in zip(panels.flat, names, strict=True):
            shares = data.shares[name]
            cell = _cell if size <= _WRITTEN_CLASSES else None
            letters = 5.2 if len(names) > 2 else 6.0
            image = style.matrix(axes, shares, cell, letters, aspect="equal", interpolation=smoothing)
            _label_axes(axes, data, style, first=name == names[0])
            style.title_model(axes, name)
            for label in data.forgotten if named else ():
                style.mark_row(axes, label, size)
        style.color_bar(image, panels, shrink=0.8, format=PercentFormatter(1.0), aspect=28)
        words = [
            "{}: {} of forgotten and {} of retained".format(name, *map(_percent, data.accuracy(name))) for name in names
        ]
        text = f"Confusion matrices, forgotten {data.forgotten_words}; called right, {'; '.join(words)}."
        return finish(style, figure, text, notes)


def _percent(share: float) -> str:
    return "none" if np.isnan(share) else f"{100 * share:.1f} %"


def _cell(share: float) -> str:
    return f"{100 * share:.0f}" if share >= _SMALLEST_WRITTEN else ""


def _label_axes(axes: Axes, data: ConfusionData, style: Style, *, first: bool) -> None:
    axes.set_xlabel("answer")
    if first:
        axes.set_ylabel("true class")
    if len(data.classes) > _NAMED_CLASSES:
        if not first:
            axes.set_yticks([])
        for label in data.forgotten:
            axes.plot(-0.5, label, marker=">", color=style.forgotten, markersize=4, clip_on=False)
        return
    ticks = range(len(data.classes))
    names = [plain_text(name, length=14) for name in data.classes]
    axes.set_xticks(ticks, names, rotation=90, fontsize=6)
    axes.set_yticks(ticks, names if first else [""] * len(names), fontsize=6)
    axes.tick_params(length=0)
    for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
        for label in data.forgotten:
            labels[label].set_color(style.forgotten)
