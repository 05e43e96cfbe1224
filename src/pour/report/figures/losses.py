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

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["LossCurve", "draw_losses", "loss_data"]

_POINTS = 200
_DESCRIBED = 8


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Losses of one run, in at most a few hundred stretches of equal length."""

    name: str
    steps: NDArray[np.float64]
    """Middle of each stretch, counted from 1."""
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    """Smallest loss of each stretch."""
    high: NDArray[np.float64]
    """Largest loss of each stretch."""
    total: int
    """Number of steps."""
    diverged_at: int | None
    """First step with a loss that is not finite, or None. The curve ends before it."""


def loss_data(losses: Mapping[str, Sequence[float]]) -> tuple[LossCurve, ...]:
    """Return the curves of runs with at least one step. Closed forms have none.

    Args:
        losses: One loss per step, by the name of the run: `TrainingLog.losses` or `HistoryEntry.losses`.

    Examples:
        >>> (curve,) = loss_data({"retrain": [3.0, 2.0, 1.0], "pour-p": []})
        >>> curve.name, curve.mean
        ('retrain', array([3., 2., 1.]))
    """
    return tuple(_curve(name, np.array(values, float)) for name, values in losses.items() if len(values))


def draw_losses(curves: Sequence[LossCurve], *, theme: Theme = "light") -> Figure:
    """Draw one panel per run, with the mean and the range of each stretch."""
    if not curves:
        raise UsageError("There is no loss to draw; closed forms take no steps.")
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH * min(len(curves), 2) / 2, 2.6)
        panels = figure.subplots(1, len(curves), squeeze=False)
        notes, words = [], []
        for axes, curve in zip(panels.flat, curves, strict=True):
            color = style.class_palette[0]
            axes.fill_between(curve.steps, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
            # A line through a single step would be invisible.
            axes.plot(curve.steps, curve.mean, color=color, marker="o" if len(curve.steps) == 1 else None, markersize=4)
            if curve.diverged_at is not None:
                axes.plot(curve.steps[-1:], curve.mean[-1:], marker="x", color=style.forgotten, markersize=6, zorder=5)
                notes.append(plain_text(f"{curve.name} diverged at step {curve.diverged_at:,} (cross).", length=80))
            if len(curve.mean):
                ends = f"from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g} in {curve.total:,} steps"
                words.append(f"{shortened(curve.name)} {ends}")
                if curve.low.min() > 0 and curve.high.max() > 30 * curve.low.min():
                    axes.set_yscale("log")
            axes.grid(axis="y")
            axes.set_title(plain_text(curve.name, length=48))
            axes.set_xlabel("step")
        panels.flat[0].set_ylabel("loss")
        rest = f" and {len(words) - _DESCRIBED} more" if len(words) > _DESCRIBED else ""
        return finish(style, figure, f"Loss curves: {', '.join(words[:_DESCRIBED])}{rest}.", notes)


def _curve(name: str, losses: NDArray[np.float64]) -> LossCurve:
    diverged = np.flatnonzero(~np.isfinite(losses))
    finite = losses[: diverged[0]] if len(diverged) else losses
    parts = np.array_split(finite, min(_POINTS, len(finite))) if len(finite) else []
    ends = np.cumsum([len(part) for part in parts])
    ranges = np.array([(math.fsum(part) / len(part), part.min(), part.max()) for part in parts]).reshape(-1, 3)
    return LossCurve(
        name=name,
        steps=np.array([end - (len(part) - 1) / 2 for end, part in zip(ends, parts, strict=True)], float),
        mean=ranges[:, 0],
        low=ranges[:, 1],
        high=ranges[:, 2],
        total=len(losses),
        diverged_at=int(diverged[0]) + 1 if len(diverged) else None,
    )
