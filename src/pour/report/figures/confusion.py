"""Which class is called which, before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.ticker import PercentFormatter

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, Theme, drawing, finish, listed, plain_text

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
class ConfusionData:
    """Confusion matrices of several models on the same images."""

    shares: Mapping[str, NDArray[np.float64]]
    """(C, C) by model: entry (i, j) is the share of class i's images that are called j; NaN for a class without any."""
    counts: NDArray[np.int64]
    """(C,) images of each class."""
    classes: tuple[str, ...]
    forgotten: tuple[int, ...]

    def accuracy(self, name: str) -> tuple[float, float]:
        """The share called right among forgotten and among retained images; NaN where there are none."""
        right = np.nan_to_num(np.diagonal(self.shares[name])) * self.counts
        gone = np.isin(np.arange(len(self.counts)), self.forgotten)
        with np.errstate(invalid="ignore"):
            return (
                float(right[gone].sum() / np.float64(self.counts[gone].sum())),
                float(right[~gone].sum() / np.float64(self.counts[~gone].sum())),
            )


def confusion_data(
    counts: Mapping[str, Tensor], *, classes: Sequence[str], forgotten: Collection[int]
) -> ConfusionData:
    """Turn counts, as :func:`pour.metrics.confusion_matrix` gives them, into shares of each true class.

    Args:
        counts: (C, C) by model: "original", "retrained", and any other name for an unlearned model.
        classes: names of all classes.
        forgotten: indices of the forgotten ones.

    Example:
        >>> import torch
        >>> data = confusion_data({"original": torch.tensor([[3, 1], [0, 4]])}, classes=["cat", "dog"], forgotten=[0])
        >>> data.shares["original"][0], data.accuracy("original")
        (array([0.75, 0.25]), (0.75, 1.0))
    """
    if not counts:
        raise UsageError("There is no confusion matrix to draw; give at least one model's.")
    size = len(classes)
    matrices = {name: values.detach().cpu().numpy().astype(np.int64) for name, values in counts.items()}
    totals = [matrix.sum(axis=1) for matrix in matrices.values() if matrix.shape == (size, size)]
    for name, matrix in matrices.items():
        if matrix.shape != (size, size):
            raise UsageError(f"The confusion matrix of {name} is {matrix.shape}, but there are {size} class names.")
        if not np.array_equal(matrix.sum(axis=1), totals[0]):
            raise UsageError(f"The confusion matrix of {name} counts other images than the first one.")
    with np.errstate(invalid="ignore"):
        shares = {name: matrix / totals[0][:, None] for name, matrix in matrices.items()}
    return ConfusionData(shares=shares, counts=totals[0], classes=tuple(classes), forgotten=tuple(sorted(forgotten)))


def draw_confusion(data: ConfusionData, *, theme: Theme = "light") -> Figure:
    """Draw a matrix to a model, true classes down, answers across; forgotten rows are framed in dark red."""
    names = sorted(data.shares, key=lambda name: {"original": 0, "retrained": 2}.get(name, 1))
    size = len(data.classes)
    notes = ["Share of a true class's images; each row adds up to 100 %."]
    if size > _NAMED_CLASSES:
        notes.append(f"{size:,} classes, by index.")
    with drawing(theme) as style:
        width = FULL_WIDTH if len(names) > 1 else FULL_WIDTH / 2
        longest = max(len(name) for name in data.classes) if size <= _NAMED_CLASSES else 3
        figure = style.figure(width, (width - 0.9) / len(names) + 0.72 + 0.05 * min(longest, 14))
        panels = figure.subplots(1, len(names), squeeze=False)
        colors = style.share_map()
        image = None
        for axes, name in zip(panels.flat, names, strict=True):
            shares = data.shares[name]
            image = axes.imshow(shares, cmap=colors, vmin=0, vmax=1, aspect="equal", interpolation=_smoothing(size))
            axes.set_title(plain_text(ROLE_TITLES.get(name, name)))
            _label_axes(axes, data, style, first=name == names[0])
            if size <= _WRITTEN_CLASSES:
                style.write_cells(axes, shares, _texts(shares), 5.2 if len(names) > 2 else 6.0)
            for spine in axes.spines.values():
                spine.set(visible=True, color=style.muted, linewidth=0.6)
            if name == "retrained":
                style.frame_reference(axes)
            if size <= _NAMED_CLASSES:
                for label in data.forgotten:
                    style.mark_row(axes, label, size)
        if image is not None:
            bar = figure.colorbar(image, ax=panels, shrink=0.8, pad=0.015, format=PercentFormatter(1.0), aspect=28)
            bar.outline.set_linewidth(0)
        style.note(figure, notes)
        words = [
            f"{name}: {_percent(forgotten)} of forgotten and {_percent(retained)} of retained"
            for name, (forgotten, retained) in ((name, data.accuracy(name)) for name in names)
        ]
        gone = listed([data.classes[label] for label in data.forgotten])
        return finish(figure, f"Confusion matrices, forgotten {gone}; called right, {'; '.join(words)}.")


def _percent(share: float) -> str:
    return "none" if np.isnan(share) else f"{100 * share:.1f} %"


def _smoothing(size: int) -> str:
    # A thousand classes on three hundred pixels: nearest would drop most of them.
    return "nearest" if size <= 100 else "antialiased"


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


def _texts(shares: NDArray[np.float64]) -> list[list[str]]:
    return [[f"{100 * share:.0f}" if share >= _SMALLEST_WRITTEN else "" for share in row] for row in shares]
