"""Names beside points, where they cover neither each other nor the points."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    from pour.report.figures.style import Style

__all__ = ["place_labels"]

_ANGLES = (0, 180, 90, 270, 45, 315, 135, 225, 22, 338, 158, 202, 67, 113, 247, 293)
_DISTANCES = (6.0, 11.0, 17.0, 25.0, 36.0, 50.0)
_POINT = 4.0
_LEADER_FROM = 14.0
Ends = tuple[float, float]


def place_labels(
    axes: Axes,
    points: NDArray[np.float64],
    texts: Sequence[str],
    colors: Sequence[str],
    style: Style,
    *,
    bars: Sequence[tuple[Ends, Ends]] = (),
) -> list[Bbox]:
    """Write each text beside its point: the nearest free place among a few, else the least covered one.

    Args:
        axes: laid out, limits final.
        points: (n, 2) in data coordinates.
        texts: ready to draw.
        colors: of the texts.
        style: for the halo.
        bars: the ends of horizontal and vertical error bars, point by point, which texts should not cover either.

    Returns:
        The texts' boxes, in pixels.
    """
    scale = axes.figure.dpi / 72
    pixels = axes.transData.transform(points)
    dots = [
        Bbox.from_bounds(x - _POINT * scale, y - _POINT * scale, 2 * _POINT * scale, 2 * _POINT * scale)
        for x, y in pixels
    ]
    lines = [
        Bbox(axes.transData.transform(ends)).padded(0.8 * scale)
        for point, (across, up) in zip(points, bars, strict=False)
        for ends in ([(across[0], point[1]), (across[1], point[1])], [(point[0], up[0]), (point[0], up[1])])
    ]
    inside = axes.get_window_extent()
    placed: list[Bbox] = []
    for i, (point, text, color) in enumerate(zip(points, texts, colors, strict=True)):
        label = axes.annotate(
            text,
            xy=(point[0], point[1]),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=7,
            color=color,
            path_effects=style.halo(),
            zorder=6,
            annotation_clip=False,
        )
        size = label.get_window_extent()
        taken = [*placed, *lines, *(dot for j, dot in enumerate(dots) if j != i)]
        best: tuple[float, float, float, float, Bbox] | None = None
        for distance in _DISTANCES:
            for angle in _ANGLES:
                dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
                # The text's near edge, not its middle, is this far away.
                x = pixels[i, 0] + dx * (distance * scale + size.width / 2) - size.width / 2
                y = pixels[i, 1] + dy * (distance * scale + size.height / 2) - size.height / 2
                box = Bbox.from_bounds(x, y, size.width, size.height)
                cost = sum(_overlap(box, other) for other in taken) + _outside(box, inside)
                if best is None or cost < best[0] - 1e-9:
                    best = (cost, distance, x - pixels[i, 0], y - pixels[i, 1], box)
            if best is not None and best[0] == 0:
                break
        if best is not None:
            _, distance, x, y, box = best
            label.set_position((x / scale, y / scale))
            placed.append(box)
            if distance >= _LEADER_FROM:
                end = axes.transData.inverted().transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
                axes.plot([point[0], end[0]], [point[1], end[1]], color=color, linewidth=0.5, alpha=0.7, zorder=2)
    return placed


def _overlap(first: Bbox, second: Bbox) -> float:
    width = min(first.x1, second.x1) - max(first.x0, second.x0)
    height = min(first.y1, second.y1) - max(first.y0, second.y0)
    return float(max(0.0, width) * max(0.0, height))


def _outside(box: Bbox, frame: Bbox) -> float:
    return float(box.width * box.height) - _overlap(box, frame)
