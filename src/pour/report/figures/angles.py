"""The angles between head rows and between class means, beside a simplex's and those of random rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.angles import AngleStatistics, angle_statistics, pairwise_angles, random_centered_rows
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.report.figures.style import Style

__all__ = ["AngleData", "angle_data", "centered_class_means", "draw_angles"]

_CONTROL_PAIRS = 20_000
_BINS = (18, 48)


@dataclass(frozen=True, kw_only=True)
class AngleData:
    """Pairwise angles of some rows in degrees, and those of random rows of the same number and width."""

    name: str
    num_rows: int
    width: int
    angles: NDArray[np.float64]
    """(C (C - 1) / 2,); pairs with a zero row are left out."""
    statistics: AngleStatistics | None
    """None for fewer than two rows."""
    control: NDArray[np.float64]
    """The angles of random centred rows, several draws together."""

    @property
    def control_std(self) -> float:
        """The spread of the control's angles; 0 where there is none."""
        return float(self.control.std()) if len(self.control) else 0.0


def centered_class_means(features: Tensor, labels: Tensor) -> Tensor:
    """The mean of each class that occurs less the mean of class means, (C, d) in float64.

    Example:
        >>> centered_class_means(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]))
        tensor([[-2.],
                [ 2.]], dtype=torch.float64)
    """
    if features.ndim != 2 or labels.shape != features.shape[:1] or not len(features):
        raise UsageError(
            f"features of shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)} do not fit; "
            "expected (n, d) and (n,)."
        )
    rows = features.detach().to("cpu", torch.float64)
    seen, index, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    sums = rows.new_zeros(len(seen), rows.shape[1]).index_add_(0, index, rows)
    means: Tensor = sums / counts.unsqueeze(1)
    return means - means.mean(dim=0)


def angle_data(rows: Mapping[str, Tensor], *, seed: int = 0) -> tuple[AngleData, ...]:
    """Measure the pairwise angles of each set of (C, d) rows, such as a head's weight and centred class means.

    The mean angle of any centred rows of equal norm is the ideal one: what tells a simplex is the narrow spread beside
    the control's.

    Args:
        rows: (C, d) by name.
        seed: fixes the control.

    Example:
        >>> from pour.geometry import simplex_etf
        >>> (data,) = angle_data({"head": simplex_etf(4, 8)})
        >>> data.angles.round(2)
        array([109.47, 109.47, 109.47, 109.47, 109.47, 109.47])
    """
    if not rows:
        raise UsageError("There are no rows to take angles of; give a head's weight or class means by name.")
    return tuple(_angles(name, values, seed) for name, values in rows.items())


def draw_angles(data: tuple[AngleData, ...], *, theme: Theme = "light") -> Figure:
    """Draw a histogram to each set of rows with its mean, the ideal angle, and the control as an outline."""
    with drawing(theme) as style:
        figure = style.figure(max(FULL_WIDTH / 2, min(FULL_WIDTH, 3.5 * len(data))), 2.5)
        panels = figure.subplots(1, len(data), squeeze=False)
        shown = [entry for entry in data if entry.statistics is not None]
        span = _span(shown)
        for axes, entry in zip(panels.flat, data, strict=True):
            axes.set_title(plain_text(f"{entry.name}: {entry.num_rows:,} rows, {entry.width:,} wide", length=48))
            if entry.statistics is None:
                style.empty_panel(axes, "fewer than two rows\nhave no angle")
                continue
            _draw_panel(axes, entry, entry.statistics, span, style)
        panels.flat[0].set_ylabel("density of pairs")
        handles = next((axes.get_legend_handles_labels() for axes in panels.flat if axes.patches), None)
        if handles is not None:
            figure.legend(*handles, loc="outside upper center", ncols=4)
        texts = [
            f"{entry.name} {entry.statistics.mean:.1f} ± {entry.statistics.std:.1f} degrees, ideal "
            f"{entry.statistics.ideal:.1f}, random rows ± {entry.control_std:.1f}"
            for entry in shown
            if entry.statistics
        ]
        return finish(figure, f"Histograms of pairwise angles: {'; '.join(texts) or 'none'}.")


def _draw_panel(
    axes: Axes, entry: AngleData, statistics: AngleStatistics, span: tuple[float, float], style: Style
) -> None:
    # Forty-five pairs in fifty bins would be a comb.
    edges = np.linspace(*span, int(np.clip(2.5 * math.sqrt(len(entry.angles)), *_BINS)) + 1).tolist()
    axes.hist(
        entry.control, bins=edges, density=True, histtype="stepfilled", color=style.faint, label="random centred rows"
    )
    axes.hist(
        entry.angles, bins=edges, density=True, color=style.accent, alpha=0.85, label="measured", rwidth=1.0, zorder=2
    )
    axes.axvline(statistics.mean, color=style.text, linewidth=1.1, linestyle=(0, (4, 2)), label="mean", zorder=3)
    axes.axvline(statistics.ideal, color=style.reference, linewidth=1.4, label="ideal, arccos(-1/(C-1))", zorder=2.5)
    axes.set(xlim=span, xlabel="angle in degrees")
    axes.set_ylim(top=1.12 * axes.get_ylim()[1])
    axes.text(
        0.02,
        0.97,
        f"mean {statistics.mean:.2f}°\nideal {statistics.ideal:.2f}°\nspread {statistics.std:.2f}°\n"
        f"random {entry.control_std:.2f}°",
        transform=axes.transAxes,
        va="top",
        fontsize=6.5,
        linespacing=1.35,
        color=style.muted,
    )


def _span(data: list[AngleData]) -> tuple[float, float]:
    if not data:
        return (0.0, 180.0)
    values = np.concatenate([part for entry in data for part in (entry.angles, entry.control)])
    ideals = [entry.statistics.ideal for entry in data if entry.statistics]
    low, high = min(float(values.min()), *ideals), max(float(values.max()), *ideals)
    margin = max(0.06 * (high - low), 0.5)
    return (max(0.0, low - margin), min(180.0, high + margin))


def _angles(name: str, rows: Tensor, seed: int) -> AngleData:
    if rows.ndim != 2:
        raise UsageError(f"{name} has shape {tuple(rows.shape)}; expected (C, d) rows.")
    count, width = rows.shape
    nothing = np.empty(0)
    if count < 2:
        return AngleData(name=name, num_rows=count, width=width, angles=nothing, statistics=None, control=nothing)
    angles = pairwise_angles(rows.detach().cpu())
    angles = angles[~angles.isnan()]
    statistics = angle_statistics(rows.detach().cpu()) if len(angles) else None
    generator = torch.Generator().manual_seed(seed)
    draws = max(1, math.ceil(_CONTROL_PAIRS / (count * (count - 1) / 2)))
    # A few thousand pairs give a smooth outline; more draws of few rows cost nothing.
    control = torch.cat(
        [pairwise_angles(random_centered_rows(count, width, generator)) for _ in range(min(draws, 500))]
    )
    return AngleData(
        name=name,
        num_rows=count,
        width=width,
        angles=angles.numpy(),
        statistics=statistics,
        control=control[~control.isnan()].numpy(),
    )
