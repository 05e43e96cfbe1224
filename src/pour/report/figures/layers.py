"""CKA between all layers of the unlearned model and those of its references."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pour.auditing.layers import LayerMap

__all__ = ["draw_layers"]

_WRITTEN_LAYERS = 8
_NAMED_LAYERS = 24
_SIDES = {"forget": "forgotten images", "retain": "retained images"}


def draw_layers(maps: Sequence[LayerMap], *, theme: Theme = "light") -> Figure:
    """Draw one heat map per reference (columns) and side (rows), with the first layers at the lower left.

    Args:
        maps: Layer maps of an `AuditReport`.
        theme: Light or dark.
    """
    if not maps:
        raise UsageError("There is no layer map to draw; run the audit with its layers.")
    references = list(dict.fromkeys(entry.reference for entry in maps))
    sides = list(dict.fromkeys(entry.side for entry in maps))
    with drawing(theme) as style:
        width = FULL_WIDTH if len(references) > 1 else 0.62 * FULL_WIDTH
        cell = (width - 1.9) / len(references)
        figure = style.figure(width, (cell + 0.3) * len(sides) + 0.8)
        panels = figure.subplots(len(sides), len(references), squeeze=False)
        for axes in panels.flat:
            axes.set_visible(False)
        words = []
        for entry in maps:
            line, column = sides.index(entry.side), references.index(entry.reference)
            axes = panels[line, column]
            axes.set_visible(True)
            values = np.array(entry.values, float).reshape(len(entry.rows), len(entry.columns))
            text = "{:.2f}".format if max(values.shape) <= _WRITTEN_LAYERS else None
            image = style.matrix(axes, values, text, 5.5, origin="lower", interpolation="nearest")
            axes.set_title(f"{_SIDES[entry.side]}, n = {entry.n:,}", fontsize=7.5)
            _name_layers(axes, entry, across=line == len(sides) - 1, down=column == 0)
            if entry.reference == "retrained":
                style.frame_reference(axes)
            if values.size:
                words.append(
                    f"with the {entry.reference} on {_SIDES[entry.side]} {values[-1, -1]:.2f} at the last layer"
                )
        style.color_bar(image, panels, shrink=0.7, aspect=30, label="linear CKA")
        description = f"CKA between layers of the unlearned model and its references: {', '.join(words)}."
        return finish(style, figure, description)


def _name_layers(axes: Axes, entry: LayerMap, *, across: bool, down: bool) -> None:
    for names, set_ticks, named, rotation in (
        (entry.columns, axes.set_xticks, across, 90),
        (entry.rows, axes.set_yticks, down, 0),
    ):
        places = list(range(0, len(names), max(1, -(-len(names) // _NAMED_LAYERS))))
        texts = [plain_text(names[i], length=18) if named else "" for i in places]
        set_ticks(places, texts, rotation=rotation, fontsize=6)
    axes.tick_params(length=0)
    if across:
        axes.set_xlabel(f"layers of the {ROLE_TITLES[entry.reference]}")
    if down:
        axes.set_ylabel("layers of the unlearned")
