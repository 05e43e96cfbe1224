"""Names next to points that cover neither each other nor the points."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from matplotlib.patheffects import withStroke
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
Numbers: TypeAlias = "NDArray[np.float64]"


def place_labels(
    axes: Axes,
    points: Numbers,
    ends: tuple[Numbers, Numbers],
    texts: Sequence[str],
    colors: Sequence[str],
    style: Style,
) -> None:
    """Write each text at the nearest free place around its point, or at the least covered one.

    Args:
        axes: Panel with its final layout and limits.
        points: Points in data coordinates, (n, 2).
        ends: Lower and upper ends of each point's error bars, (n, 2) each. Texts avoid the bars too.
        texts: Texts, already safe to draw.
        colors: Colours of the texts.
        style: Style of the figure.
    """
    scale = axes.figure.dpi / 72
    pixels = axes.transData.transform(points)
    half = _POINT * scale
    dots = [Bbox.from_bounds(x - half, y - half, 2 * half, 2 * half) for x, y in pixels]
    lines = [
        Bbox(axes.transData.transform(bar)).padded(0.8 * scale)
        for (x, y), low, high in zip(points, *ends, strict=True)
        for bar in ([(low[0], y), (high[0], y)], [(x, low[1]), (x, high[1])])
    ]
    frame = axes.get_window_extent()
    halo = [withStroke(linewidth=2.0, foreground=style.background)]
    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "path_effects": halo, "zorder": 6}
    placed: list[Bbox] = []
    for i, (point, text, color) in enumerate(zip(points, texts, colors, strict=True)):
        label = axes.annotate(text, xy=tuple(point), xytext=(0, 0), color=color, annotation_clip=False, **options)
        size = label.get_window_extent()
        covered = [*placed, *lines, *(dot for j, dot in enumerate(dots) if j != i)]
        best: tuple[float, float, Bbox] | None = None
        for distance, angle in itertools.product(_DISTANCES, _ANGLES):
            dx, dy = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            # The distance is measured to the text's near edge, not to its middle.
            x = pixels[i, 0] + dx * (distance * scale + size.width / 2) - size.width / 2
            y = pixels[i, 1] + dy * (distance * scale + size.height / 2) - size.height / 2
            box = Bbox.from_bounds(x, y, size.width, size.height)
            outside = float(box.width * box.height) - _overlap(box, frame)
            cost = sum(_overlap(box, other) for other in covered) + outside
            if best is None or cost < best[0] - 1e-9:
                best = (cost, distance, box)
            if best[0] == 0:
                break
        if best is None:
            continue
        _, distance, box = best
        label.set_position(((box.x0 - pixels[i, 0]) / scale, (box.y0 - pixels[i, 1]) / scale))
        placed.append(box)
        if distance >= _LEADER_FROM:
            end = axes.transData.inverted().transform(((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2))
            axes.plot([point[0], end[0]], [point[1], end[1]], color=color, linewidth=0.5, alpha=0.7, zorder=2)


def _overlap(first: Bbox, second: Bbox) -> float:
    both = Bbox.intersection(first, second)
    return 0.0 if both is None else float(both.width * both.height)
