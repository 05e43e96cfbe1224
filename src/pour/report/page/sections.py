"""A figure on a page: drawings for light and dark pages with title, caption and description."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from matplotlib.figure import Figure

__all__ = ["FigureSection"]

_VIEW_BOX = re.compile(r"viewBox=[\"']\s*\S+\s+\S+\s+([\d.]+)\s+([\d.]+)")
_WIDE = 1.9


@dataclass(frozen=True, kw_only=True)
class FigureSection:
    """One figure as the text of an SVG.

    Figures with the same `group` share one place of the page, where the reader selects one of them. A page shows
    drawings as images, so that nothing inside an SVG can run or load anything.

    Examples:
        >>> FigureSection(title="A dot", alt="a dot", light="<svg xmlns='http://www.w3.org/2000/svg'/>").sources[0][:26]
        'data:image/svg+xml;base64,'
    """

    title: str
    alt: str
    """Description for readers who cannot see the figure."""
    light: str
    dark: str | None = None
    """Drawing for a dark page; by default the light drawing on white."""
    caption: str = ""
    group: str | None = None
    choice: str | None = None
    """Name of this figure within its group."""

    def __post_init__(self) -> None:
        if not self.alt.strip():
            raise UsageError(f"The figure {self.title!r} has no alt text; say in a sentence what it shows.")
        if (self.group is None) != (self.choice is None):
            raise UsageError(f"The figure {self.title!r} needs both a group and a choice, or neither.")
        drawings = (self.light, self.light if self.dark is None else self.dark)
        if not all(isinstance(drawing, str) and "<svg" in drawing for drawing in drawings):
            raise UsageError(f"The figure {self.title!r} must be the text of an SVG.")

    @classmethod
    def of(cls, title: str, draw: Callable[..., Figure], data: object, **options: str) -> FigureSection:
        """Draw a figure for light and dark pages. The figure's label becomes the description.

        Args:
            title: Title above the figure.
            draw: Function that draws the figure, such as `pour.report.figures.draw_confusion`.
            data: Data of the figure.
            options: Caption, group and choice of the section.
        """
        from pour.report.figures.saving import figure_svg

        light, dark = draw(data, theme="light"), draw(data, theme="dark")
        alt = str(light.get_label()) or title
        return cls(title=title, alt=alt, light=figure_svg(light), dark=figure_svg(dark), **options)

    @property
    def wide(self) -> bool:
        """Whether the drawing needs the full width of the page."""
        box = _VIEW_BOX.search(self.light)
        return box is not None and float(box[1]) > _WIDE * float(box[2])

    @property
    def sources(self) -> tuple[str, str | None]:
        """Data addresses of the light and the dark drawing."""
        return _address(self.light), None if self.dark is None else _address(self.dark)


def _address(drawing: str) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(drawing.encode()).decode('ascii')}"
