"""A figure on a page: a drawing for light and for dark, with the words that go with it."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

    from pour.report.figures.style import Theme

__all__ = ["FigureSection"]

_PNG = b"\x89PNG\r\n\x1a\n"
_BOX = re.compile(r"viewBox=[\"']\s*\S+\s+\S+\s+([\d.]+)\s+([\d.]+)")
_WIDE = 1.9


@dataclass(frozen=True, kw_only=True)
class FigureSection:
    """One figure: SVG as text or PNG as bytes.

    Figures that share a ``group`` stand in one place, where the reader switches between their choices: classes,
    methods, layers. Drawings are shown as images, so that nothing inside an SVG can run or reach out.

    Example:
        >>> FigureSection(title="A dot", alt="a dot", light="<svg xmlns='http://www.w3.org/2000/svg'/>").sources[0][:26]
        'data:image/svg+xml;base64,'
    """

    title: str
    alt: str
    """What a reader who cannot see it must know."""
    light: str | bytes
    dark: str | bytes | None = None
    """The same drawing for a dark page; without it the light one stands on white."""
    caption: str = ""
    group: str | None = None
    choice: str | None = None
    """The name of this figure within its group."""

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise UsageError(f"The figure {self.title!r} has no alt text; say in a sentence what it shows.")
        if (self.group is None) != (self.choice is None):
            raise UsageError(f"The figure {self.title!r} needs both a group and a choice, or neither.")
        for drawing in (self.light, self.dark):
            if drawing is not None and not _known(drawing):
                raise UsageError(f"The figure {self.title!r} must be SVG text or the bytes of a PNG file.")

    @classmethod
    def of(
        cls,
        title: str,
        draw: Callable[[Theme], Figure],
        *,
        caption: str = "",
        group: str | None = None,
        choice: str | None = None,
    ) -> FigureSection:
        """Draw a figure for light and for dark; the figure's own label is the alt text.

        Args:
            title: over the figure.
            draw: for instance ``lambda theme: draw_confusion(data, theme=theme)``.
            caption: under it.
            group: the place that it shares with other figures.
            choice: its name there.
        """
        from pour.report.figures.saving import figure_svg

        light, dark = draw("light"), draw("dark")
        return cls(
            title=title,
            alt=str(light.get_label()) or title,
            light=figure_svg(light),
            dark=figure_svg(dark),
            caption=caption,
            group=group,
            choice=choice,
        )

    @property
    def wide(self) -> bool:
        """Whether the drawing is so much wider than high that it needs the page's whole width."""
        width, height = _size(self.light)
        return width > _WIDE * height

    @property
    def sources(self) -> tuple[str, str | None]:
        """Data addresses of the light and the dark drawing."""
        return _address(self.light), None if self.dark is None else _address(self.dark)


def _known(drawing: str | bytes) -> bool:
    return drawing.startswith(_PNG) if isinstance(drawing, bytes) else "<svg" in drawing


def _size(drawing: str | bytes) -> tuple[float, float]:
    """Width and height in whatever unit; a square where an SVG does not say."""
    if isinstance(drawing, bytes):
        return int.from_bytes(drawing[16:20], "big"), int.from_bytes(drawing[20:24], "big")
    found = _BOX.search(drawing)
    return (float(found[1]), float(found[2])) if found else (1.0, 1.0)


def _address(drawing: str | bytes) -> str:
    kind, data = ("svg+xml", drawing.encode()) if isinstance(drawing, str) else ("png", drawing)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"
