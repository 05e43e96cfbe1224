"""Loss curves of training and of unlearning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, plain_text, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.report.figures.style import Style

__all__ = ["LossCurve", "draw_losses", "loss_data"]

_POINTS = 200
_LEGEND = 8
_LINES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The losses of one run, brought to at most a few hundred stretches of equal length."""

    name: str
    steps: NDArray[np.float64]
    """The middle of each stretch, counted from 1."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    """The smallest loss of each stretch."""
    high: NDArray[np.float64]
    """The largest."""
    total: int
    """Steps taken."""
    diverged_at: int | None
    """The first step whose loss is not finite; what follows is left out."""


def loss_data(losses: Mapping[str, Sequence[float]]) -> tuple[LossCurve, ...]:
    """Prepare the losses of several runs, one value to a step; runs without a step (closed forms) are left out.

    Args:
        losses: by the name to show, such as ``TrainingLog.losses`` and ``HistoryEntry.losses``.

    Example:
        >>> (curve,) = loss_data({"retrain": [3.0, 2.0, 1.0], "pour-p": []})
        >>> curve.name, curve.mean
        ('retrain', array([3., 2., 1.]))
    """
    return tuple(_curve(name, np.array(values, float)) for name, values in losses.items() if len(values))


def draw_losses(panels: Mapping[str, Sequence[LossCurve]], *, theme: Theme = "light") -> Figure:
    """Draw a panel to each group of runs, for instance "training" and "unlearning": mean and range of each stretch.

    Args:
        panels: curves by the panel's title.
        theme: light or dark.
    """
    shown = {title: curves for title, curves in panels.items() if curves}
    if not shown:
        raise UsageError("There is no loss to draw; closed forms take no steps.")
    with drawing(theme) as style:
        figure = style.figure(max(FULL_WIDTH / 2, FULL_WIDTH * min(len(shown), 2) / 2), 2.6)
        grid = figure.subplots(1, len(shown), squeeze=False)
        notes: list[str] = []
        for axes, (title, curves) in zip(grid.flat, shown.items(), strict=True):
            notes += _draw_panel(axes, curves, style)
            axes.set_title(plain_text(title, length=48))
            axes.set_xlabel("step")
        grid.flat[0].set_ylabel("loss")
        style.note(figure, notes)
        words = [
            f"{shortened(curve.name)} from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g} in {curve.total:,} steps"
            for curves in shown.values()
            for curve in curves
            if len(curve.mean)
        ]
        more = f" and {len(words) - _LEGEND} more" if len(words) > _LEGEND else ""
        return finish(figure, f"Loss curves: {', '.join(words[:_LEGEND])}{more}.")


def _draw_panel(axes: Axes, curves: Sequence[LossCurve], style: Style) -> list[str]:
    notes = []
    for i, curve in enumerate(curves):
        color = style.class_palette[i % len(style.class_palette)]
        line = _LINES[(i // 3) % len(_LINES)] if len(curves) > 3 else "-"
        axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        # A single step is a point, not a line.
        marker = "o" if len(curve.steps) == 1 else None
        label = plain_text(curve.name) if i < _LEGEND else None
        axes.plot(curve.steps, curve.mean, color=color, linestyle=line, marker=marker, markersize=4, label=label)
        if curve.diverged_at is not None:
            if len(curve.steps):
                axes.plot(curve.steps[-1:], curve.mean[-1:], marker="x", color=style.forgotten, markersize=6, zorder=5)
            notes.append(plain_text(f"{curve.name} diverged at step {curve.diverged_at:,} (cross).", length=80))
    finite = [curve for curve in curves if len(curve.mean)]
    if finite:
        smallest, largest = min(curve.low.min() for curve in finite), max(curve.high.max() for curve in finite)
        if smallest > 0 and largest > 30 * smallest:
            axes.set_yscale("log")
    if len(curves) > 1:
        axes.legend(loc="best")
    if len(curves) > _LEGEND:
        notes.append(f"The first {_LEGEND} of {len(curves)} runs are named.")
    axes.grid(axis="y")
    return notes


def _curve(name: str, losses: NDArray[np.float64]) -> LossCurve:
    bad = np.flatnonzero(~np.isfinite(losses))
    diverged = int(bad[0]) + 1 if len(bad) else None
    good = losses[: bad[0]] if len(bad) else losses
    parts = np.array_split(good, min(_POINTS, len(good))) if len(good) else []
    ends = np.cumsum([len(part) for part in parts])
    return LossCurve(
        name=name,
        steps=np.array([end - (len(part) - 1) / 2 for end, part in zip(ends, parts, strict=True)], float),
        mean=np.array([math.fsum(part) / len(part) for part in parts], float),
        low=np.array([part.min() for part in parts], float),
        high=np.array([part.max() for part in parts], float),
        total=len(losses),
        diverged_at=diverged,
    )
