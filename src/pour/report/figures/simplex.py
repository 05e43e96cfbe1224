"""The paper's picture of forgetting: a simplex of four classes loses a vertex and leaves a simplex of three."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from pour.geometry.angles import pairwise_angles
from pour.geometry.projector import Projector
from pour.geometry.simplex import simplex_etf
from pour.report.figures.style import Theme, drawing, finish

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pour.report.figures.style import Style

__all__ = ["SimplexData", "draw_simplex", "simplex_data"]

Vectors = NDArray[np.float64]
_AZIMUTH, _ELEVATION = math.radians(66), math.radians(24)


@dataclass(frozen=True, kw_only=True)
class SimplexData:
    """Four class directions in space; the first is forgotten and points up."""

    vertices: Vectors
    """(4, 3) unit rows v_1 .. v_4 with inner products -1/3."""
    projected: Vectors
    """(3, 3) rows u_i = P v_i, of length sqrt(8) / 3, in the plane orthogonal to v_1."""
    angle_before: float
    """Between any two vertices, arccos(-1/3) in degrees."""
    angle_after: float
    """Between any two projected ones, 120 degrees: a simplex of three."""


def simplex_data() -> SimplexData:
    """Build the simplex of C = 4 and project it with the package's own projector.

    Example:
        >>> data = simplex_data()
        >>> round(data.angle_before, 2), round(data.angle_after, 2)
        (109.47, 120.0)
    """
    frame = simplex_etf(4, 3, dtype=torch.float64)
    # The last vertex of the standard frame points straight down; turned round, it stands first.
    vertices = (frame * torch.tensor([1.0, 1.0, -1.0]))[[3, 0, 1, 2]]
    projected = Projector.from_directions(vertices[0])(vertices[1:])
    return SimplexData(
        vertices=vertices.numpy(),
        projected=projected.numpy(),
        angle_before=float(pairwise_angles(vertices).mean()),
        angle_after=float(pairwise_angles(projected).mean()),
    )


def draw_simplex(data: SimplexData | None = None, *, theme: Theme = "light") -> Figure:
    """Draw the simplex with the plane that remains, and beside it the plane from above."""
    data = data or simplex_data()
    with drawing(theme) as style:
        figure = style.figure(6.0, 2.5)
        space, plane = figure.subplots(1, 2, width_ratios=[1.25, 1])
        for axes in (space, plane):
            axes.set_aspect("equal", adjustable="datalim")
            axes.axis("off")
        _draw_space(space, data, style)
        _draw_plane(plane, data, style)
        return finish(
            figure,
            f"A simplex of four class directions with {data.angle_before:.1f} degrees between any two; projecting "
            f"along the forgotten one leaves three at {data.angle_after:.0f} degrees in the plane orthogonal to it.",
        )


def _camera(points: Vectors) -> Vectors:
    """Orthographic view from the side and a little above, (n, 2)."""
    x, y, z = np.atleast_2d(points).T
    across = -math.sin(_AZIMUTH) * x + math.cos(_AZIMUTH) * y
    towards = math.cos(_AZIMUTH) * x + math.sin(_AZIMUTH) * y
    return np.stack([across, math.cos(_ELEVATION) * z - math.sin(_ELEVATION) * towards], axis=1)


def _arrow(axes: Axes, tip: Vectors, color: str, *, width: float = 1.6, zorder: float = 3) -> None:
    axes.annotate(
        "",
        xy=(tip[0], tip[1]),
        xytext=(0, 0),
        arrowprops={
            "arrowstyle": "-|>",
            "mutation_scale": 9,
            "shrinkA": 0,
            "shrinkB": 0,
            "color": color,
            "linewidth": width,
        },
        zorder=zorder,
    )


def _draw_space(axes: Axes, data: SimplexData, style: Style) -> None:
    corners = _camera(1.1 * np.array([[1, 1, 0], [-1, 1, 0], [-1, -1, 0], [1, -1, 0]], float))
    axes.fill(corners[:, 0], corners[:, 1], color=style.faint, alpha=0.45, linewidth=0, zorder=0)
    vertices, shadows = _camera(data.vertices), _camera(data.projected)
    for i in range(4):
        for j in range(i + 1, 4):
            ends = vertices[[i, j]]
            axes.plot(ends[:, 0], ends[:, 1], color=style.muted, linewidth=0.7, alpha=0.6, zorder=1)
    loop = shadows[[0, 1, 2, 0]]
    axes.fill(loop[:, 0], loop[:, 1], color=style.accent, alpha=0.16, linewidth=0, zorder=1)
    axes.plot(loop[:, 0], loop[:, 1], color=style.accent, linewidth=1.1, zorder=2)
    for i in range(3):
        drop = np.stack([vertices[i + 1], shadows[i]])
        axes.plot(drop[:, 0], drop[:, 1], color=style.muted, linewidth=0.9, linestyle=(0, (2, 2)), zorder=2)
        _arrow(axes, vertices[i + 1], style.text, width=1.2)
        _arrow(axes, shadows[i], style.accent)
        _label(axes, vertices[i + 1], f"$v_{i + 2}$", style.text, style, away=np.array([0.0, -1.0]))
        _label(axes, shadows[i], f"$u_{i + 2}$", style.accent, style, away=np.array([0.0, 1.0]))
    _arrow(axes, vertices[0], style.forgotten, width=2.2, zorder=4)
    axes.text(vertices[0, 0] + 0.07, vertices[0, 1] - 0.02, "$v_1$  forgotten", color=style.forgotten, va="center")
    where = _camera(np.array([[1.05, -1.0, 0.0]]))[0]
    axes.text(where[0], where[1] - 0.06, r"$v_1^\perp$", color=style.muted, ha="left", va="top", fontsize=8)
    axes.set_title(f"C = 4: {data.angle_before:.1f}° between any two")


def _label(axes: Axes, tip: Vectors, text: str, color: str, style: Style, *, away: Vectors) -> None:
    outward = tip / max(float(np.linalg.norm(tip)), 1e-9)
    place = tip + 0.11 * (0.6 * outward + 0.8 * away)
    axes.text(place[0], place[1], text, color=color, ha="center", va="center", path_effects=style.halo(), zorder=6)


def _draw_plane(axes: Axes, data: SimplexData, style: Style) -> None:
    flat = data.projected[:, :2]
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    ring = np.linspace(0, 2 * math.pi, 181)
    axes.plot(np.cos(ring), np.sin(ring), color=style.faint, linewidth=0.9, zorder=0)
    loop = flat[[0, 1, 2, 0]]
    axes.fill(loop[:, 0], loop[:, 1], color=style.accent, alpha=0.16, linewidth=0)
    axes.plot(loop[:, 0], loop[:, 1], color=style.accent, linewidth=1.1)
    for i in range(3):
        _arrow(axes, flat[i], style.accent)
        place = 1.16 * unit[i]
        axes.text(place[0], place[1], f"$u_{i + 2}$", color=style.accent, ha="center", va="center")
    start, stop = sorted(np.arctan2(unit[:2, 1], unit[:2, 0]) % (2 * math.pi))
    arc = np.linspace(start, stop, 60)
    axes.plot(0.2 * np.cos(arc), 0.2 * np.sin(arc), color=style.text, linewidth=0.9)
    middle = (start + stop) / 2
    axes.text(0.33 * math.cos(middle), 0.33 * math.sin(middle), f"{data.angle_after:.0f}°", ha="center", va="center")
    axes.plot(0, 0, marker="o", markersize=5, color=style.forgotten, zorder=5)
    axes.text(0.07, -0.1, "$P v_1 = 0$", color=style.forgotten, va="top", fontsize=6.5)
    axes.update_datalim([(-1.2, -1.2), (1.2, 1.2)])
    axes.autoscale_view()
    axes.set_title(f"after projection: C = 3, {data.angle_after:.0f}°")
