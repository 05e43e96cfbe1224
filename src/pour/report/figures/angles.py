"""Angles between the rows of a head and between class means, compared with a simplex and with random rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.angles import AngleStatistics, angle_statistics, pairwise_angles, random_centered_rows
from pour.geometry.fitter import ProjectorFitter
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.report.figures.style import Style

__all__ = ["AngleData", "angle_data", "centered_class_means", "draw_angles"]

_CONTROL_PAIRS = 20_000
_BINS = (18, 48)


@dataclass(frozen=True, kw_only=True)
class AngleData:
    """Pairwise angles of rows in degrees, and those of random rows of the same number and width."""

    name: str
    shape: tuple[int, int]
    """Number of rows and their width."""
    angles: NDArray[np.float64]
    """Angles of all pairs of rows except pairs with a zero row."""
    statistics: AngleStatistics | None
    """Mean and spread of the angles; None for fewer than two rows."""
    control: NDArray[np.float64]
    """Angles of random centred rows, drawn several times."""

    @property
    def control_std(self) -> float:
        """Standard deviation of the control's angles; 0 without a control."""
        return float(self.control.std()) if len(self.control) else 0.0


def centered_class_means(features: Tensor, labels: Tensor) -> Tensor:
    """Return the mean feature of each present class minus the mean of all class means, (C, d) in float64.

    Examples:
        >>> centered_class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]))
        tensor([[-2.],
                [ 2.]], dtype=torch.float64)
    """
    return ProjectorFitter(torch.unique(labels).tolist(), centered=True).update(features, labels).directions


def angle_data(rows: Mapping[str, Tensor], *, seed: int = 0) -> tuple[AngleData, ...]:
    """Compute the pairwise angles of sets of rows, such as a head's weight and centred class means.

    The mean angle of any centred rows of equal norm is the ideal angle. Only a smaller spread than the control's is
    evidence of a simplex.

    Args:
        rows: Sets of rows by name, each (C, d).
        seed: Seed of the control.

    Examples:
        >>> from pour.geometry import simplex_etf
        >>> (data,) = angle_data({"head": simplex_etf(4, 8)})
        >>> data.angles.round(2)
        array([109.47, 109.47, 109.47, 109.47, 109.47, 109.47])
    """
    if not rows:
        raise UsageError("There are no rows to take angles of; give a head's weight or class means by name.")
    return tuple(_angles(name, values.detach().cpu(), seed) for name, values in rows.items())


def draw_angles(data: tuple[AngleData, ...], *, theme: Theme = "light") -> Figure:
    """Draw one histogram per set of rows with its mean, the ideal angle and the control."""
    with drawing(theme) as style:
        figure = style.figure(max(FULL_WIDTH / 2, min(FULL_WIDTH, 3.5 * len(data))), 2.5)
        panels = figure.subplots(1, len(data), squeeze=False)
        span = _span(data)
        words = []
        for axes, entry in zip(panels.flat, data, strict=True):
            axes.set_title(plain_text(f"{entry.name}: {entry.shape[0]:,} rows, {entry.shape[1]:,} wide", length=48))
            if entry.statistics is None:
                style.empty_panel(axes, "fewer than two rows\nhave no angle")
                continue
            _draw_panel(axes, entry, entry.statistics, span, style)
            words.append(
                f"{entry.name} {entry.statistics.mean:.1f} ± {entry.statistics.std:.1f} degrees, ideal "
                f"{entry.statistics.ideal:.1f}, random rows ± {entry.control_std:.1f}"
            )
        panels.flat[0].set_ylabel("density of pairs")
        drawn = next((axes for axes in panels.flat if axes.patches), None)
        if drawn is not None:
            figure.legend(*drawn.get_legend_handles_labels(), loc="outside upper center", ncols=4)
        return finish(style, figure, f"Histograms of pairwise angles: {'; '.join(words) or 'none'}.")


def _draw_panel(
    axes: Axes, entry: AngleData, statistics: AngleStatistics, span: tuple[float, float], style: Style
) -> None:
    # Few pairs in many bins would look like a comb.
    bins = np.linspace(*span, int(np.clip(2.5 * math.sqrt(len(entry.angles)), *_BINS)) + 1).tolist()
    axes.hist(entry.control, bins, density=True, histtype="stepfilled", color=style.faint, label="random centred rows")
    axes.hist(entry.angles, bins, density=True, color=style.accent, alpha=0.85, label="measured", rwidth=1.0, zorder=2)
    axes.axvline(statistics.mean, color=style.text, linewidth=1.1, linestyle=(0, (4, 2)), label="mean", zorder=3)
    axes.axvline(statistics.ideal, color=style.reference, linewidth=1.4, label="ideal, arccos(-1/(C-1))", zorder=2.5)
    axes.set(xlim=span, xlabel="angle in degrees")
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    text = (
        f"mean {statistics.mean:.2f}°\nideal {statistics.ideal:.2f}°\nspread {statistics.std:.2f}°\n"
        f"random {entry.control_std:.2f}°"
    )
    style.small_text(axes, 0.02, 0.97, text, va="top", linespacing=1.35)


def _span(data: Sequence[AngleData]) -> tuple[float, float]:
    """Return the smallest and the largest angle of all panels, with a margin."""
    values = [entry.angles for entry in data] + [entry.control for entry in data]
    values += [np.array([entry.statistics.ideal]) for entry in data if entry.statistics]
    every = np.concatenate(values)
    if not len(every):
        return (0.0, 180.0)
    low, high = float(every.min()), float(every.max())
    margin = max(0.06 * (high - low), 0.5)
    return (max(0.0, low - margin), min(180.0, high + margin))


def _angles(name: str, rows: Tensor, seed: int) -> AngleData:
    if rows.ndim != 2:
        raise UsageError(f"{name} has shape {tuple(rows.shape)}; expected (C, d) rows.")
    count, width = rows.shape
    angles, statistics, control = torch.empty(0), None, torch.empty(0)
    if count >= 2:
        angles = pairwise_angles(rows)
        statistics = None if angles.isnan().all() else angle_statistics(rows)
        # A few thousand pairs give a smooth outline, and several draws of few rows cost little time.
        draws = min(500, max(1, math.ceil(_CONTROL_PAIRS / (count * (count - 1) / 2))))
        generator = torch.Generator().manual_seed(seed)
        control = torch.cat([pairwise_angles(random_centered_rows(count, width, generator)) for _ in range(draws)])
    return AngleData(
        name=name,
        shape=(count, width),
        angles=angles[~angles.isnan()].double().numpy(),
        statistics=statistics,
        control=control[~control.isnan()].double().numpy(),
    )
