"""Sizes, fonts, colours, legends and notes that all figures share, and names that are safe to draw."""

from __future__ import annotations

import contextlib
import textwrap
import threading
import tomllib
import unicodedata
from dataclasses import dataclass
from functools import cache
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any, Literal, get_args

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from pour.errors import check_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

__all__ = [
    "FULL_WIDTH",
    "ROLE_TITLES",
    "ClassNames",
    "Style",
    "Theme",
    "drawing",
    "finish",
    "in_order",
    "listed",
    "plain_text",
    "settings",
    "shortened",
    "style_of",
]

Theme = Literal["light", "dark"]
FULL_WIDTH = 7.0
"""Text width of a two-column paper in inches."""

ROLE_TITLES = {
    "original": "original",
    "unlearned": "unlearned",
    "retrained": "retrained (reference)",
    "retrained_second": "retrained, second seed",
}
"""Title of a model by its role."""

_NAME_LENGTH = 28
# Fonts with the scripts that the default font lacks. matplotlib looks up each character in the installed fonts.
_FALLBACK_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS")
# The settings of matplotlib are global while a figure is drawn, so that only one thread can draw at a time.
_LOCK = threading.RLock()


@dataclass(frozen=True, kw_only=True)
class ClassNames:
    """Names of all classes and indices of the forgotten ones, which the data of most figures contain."""

    classes: tuple[str, ...]
    forgotten: tuple[int, ...]

    @property
    def forgotten_words(self) -> str:
        """Names of the forgotten classes as part of a sentence."""
        return listed([self.classes[label] for label in self.forgotten])


@dataclass(frozen=True)
class Style:
    """Colours of a theme, and the elements that several figures have in common."""

    background: str
    text: str
    muted: str
    """Colour of secondary text, axes and notes."""
    faint: str
    """Colour of grid lines and of areas behind the data."""
    forgotten: str
    """Dark red: colour of the forgotten classes in every figure."""
    reference: str
    """Gold: colour of the retrained model."""
    accent: str
    """Colour of the unlearned model."""
    baseline: str
    """Colour of the original model."""
    shares: Sequence[str]
    """Colours of shares from 0 to 1."""
    class_palette: Sequence[str]
    """Colours of retained classes, without reds and browns. Further classes repeat them."""

    def class_colors(self, num_classes: int, forgotten: Collection[int]) -> list[str]:
        """Return one colour per class: dark red for the forgotten classes, the palette in turn for the others."""
        colors = [self.forgotten] * num_classes
        for i, label in enumerate(label for label in range(num_classes) if label not in forgotten):
            colors[label] = self.class_palette[i % len(self.class_palette)]
        return colors

    def role_color(self, role: str) -> str:
        """Return the colour of a model by its role. Unknown roles are unlearned models."""
        return {"original": self.baseline, "retrained": self.reference, "retrained_second": self.reference}.get(
            role, self.accent
        )

    def figure(self, width: float, height: float, *, gap: float | None = None) -> Figure:
        """Return an empty figure without a window, with its size and the gap between pictures in inches."""
        options: dict[str, Any] = {} if gap is None else {"w_pad": gap, "h_pad": gap, "wspace": 0.0, "hspace": 0.0}
        return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(**options))

    def frame(self, axes: Axes, color: str, linewidth: float) -> None:
        """Draw all four sides of a panel."""
        for spine in axes.spines.values():
            spine.set(visible=True, color=color, linewidth=linewidth)

    def frame_reference(self, axes: Axes) -> None:
        """Draw the gold frame of a panel that shows the retrained model."""
        self.frame(axes, self.reference, 2.2)

    def title_model(self, axes: Axes, name: str) -> None:
        """Write the title of a model above its panel; the retrained model has a gold frame."""
        axes.set_title(plain_text(ROLE_TITLES.get(name, name)))
        if name == "retrained":
            self.frame_reference(axes)

    def bare(self, axes: Axes) -> None:
        """Remove the ticks of a panel whose coordinates have no meaning, and draw a thin frame."""
        axes.set(xticks=[], yticks=[])
        self.frame(axes, self.faint, 0.8)

    def empty_panel(self, axes: Axes, reason: str) -> None:
        """Write into a panel why it is empty."""
        self.bare(axes)
        axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color=self.muted, wrap=True)

    def small_text(self, axes: Axes, x: float, y: float, text: str, **options: Any) -> None:
        """Write secondary text at a place in a panel, where (0, 0) is the lower left and (1, 1) the upper right."""
        axes.text(x, y, text, transform=axes.transAxes, fontsize=6.5, color=self.muted, **options)

    def matrix(
        self, axes: Axes, shares: NDArray[np.float64], cell: Callable[[float], str] | None, size: float, **options: Any
    ) -> AxesImage:
        """Draw a matrix of shares, with the text that `cell` returns for each share. Missing shares are grey."""
        colors = LinearSegmentedColormap.from_list("pour", self.shares).with_extremes(bad=self.faint)
        self.frame(axes, self.muted, 0.6)
        for (i, j), value in np.ndenumerate(shares):
            if cell and (text := cell(value)):
                red, green, blue, _ = colors(value)
                ink = "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "#ffffff"
                axes.text(j, i, text, ha="center", va="center", fontsize=size, color=ink, in_layout=False)
        return axes.imshow(shares, colors, vmin=0, vmax=1, **options)

    def color_bar(self, image: AxesImage, panels: NDArray[Any], **options: Any) -> None:
        """Add the colour scale of a row or grid of matrices."""
        figure = panels.flat[0].figure
        figure.colorbar(image, ax=panels, pad=0.015, **options).outline.set_linewidth(0)

    def key(self, label: str, *, marker: str, color: str, size: float | None = None) -> Line2D:
        """Return the entry of a legend for points."""
        return Line2D([], [], marker=marker, linestyle="", color=color, markersize=size, label=label)

    def legend(self, figure: Figure, handles: Sequence[Artist], ncols: int | None = None, **options: Any) -> None:
        """Add a legend above the panels, if it has an entry. By default all entries are in one row."""
        if handles:
            figure.legend(handles=handles, loc="outside upper center", ncols=ncols or len(handles), **options)

    def name_places(self, axes: Axes, names: Sequence[str], forgotten: Collection[int], *, width: float) -> None:
        """Write names below the places 0, 1, ... of a panel, slanted if they would overlap.

        Args:
            axes: Panel.
            names: Names, already safe to draw.
            forgotten: Places of forgotten classes.
            width: Width of the panel in inches.
        """
        # A letter of this size is about 0.06 inches wide.
        crowded = len(names) * max(map(len, names)) * 0.06 > 0.94 * width
        slant: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(range(len(names)), names, **slant)
        axes.tick_params(axis="x", length=0)
        for place in forgotten:
            axes.get_xticklabels()[place].set(color=self.forgotten, fontweight="bold")

    def mark_row(self, axes: Axes, row: int, width: float) -> None:
        """Frame a row of a matrix in the colour of the forgotten classes."""
        axes.add_patch(
            Rectangle((-0.5, row - 0.5), width, 1, fill=False, edgecolor=self.forgotten, linewidth=1.2, clip_on=False)
        )


@cache
def style_of(theme: Theme) -> Style:
    """Return the style of a theme. Raise UsageError for an unknown theme."""
    check_choice("theme", theme, get_args(Theme))
    themes = tomllib.loads((files("pour.report.figures") / "themes.toml").read_text(encoding="utf-8"))
    return Style(**themes[theme])


@contextlib.contextmanager
def drawing(theme: Theme) -> Iterator[Style]:
    """Draw in the style of a theme. Afterwards matplotlib has the user's settings again.

    Examples:
        >>> with drawing("light") as style:
        ...     figure = style.figure(3, 2)
        >>> style.forgotten
        '#8b0000'
    """
    style = style_of(theme)
    with settings(style):
        yield style


def finish(style: Style, figure: Figure, description: str, notes: Sequence[str] = ()) -> Figure:
    """Compute the layout once, so that each later file of the figure has the same bytes.

    Args:
        style: Style of the figure.
        figure: Figure with all its parts.
        description: Sentence for readers who cannot see the figure. It becomes the figure's label.
        notes: Sentences below the figure, such as the number of points that are not drawn.
    """
    if notes:
        # A letter of this size is about 0.046 inches wide; a narrow figure needs several lines.
        letters = max(20, int(figure.get_figwidth() / 0.046))
        text = textwrap.fill(" ".join(notes), width=letters)
        figure.supxlabel(text, fontsize=6.5, color=style.muted, x=0.01, ha="left")
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    # A figure without an engine is drawn once per file; with an engine that does nothing it would be drawn twice.
    figure.set_layout_engine(None)
    figure.set_label(description)
    return figure


@contextlib.contextmanager
def settings(style: Style | None = None) -> Iterator[None]:
    """Use the settings of pour's figures for one thread at a time, with the colours of a style."""
    values: Any = {**_settings(), **(_colors(style) if style else {})}
    with _LOCK, matplotlib.rc_context(values):
        yield


def plain_text(text: str, *, length: int = _NAME_LENGTH) -> str:
    r"""Return a name that is safe to draw: shortened, and without dollars that would start a formula.

    Examples:
        >>> plain_text("cost $5 <b>")
        'cost \\$5 <b>'
    """
    return shortened(text, length=length).replace("$", r"\$")


def shortened(text: str, *, length: int = _NAME_LENGTH) -> str:
    """Return a name as one line of at most `length` characters, without control characters."""
    line = " ".join("".join(" " if unicodedata.category(char)[0] == "C" else char for char in text).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def listed(names: Sequence[str], *, most: int = 4) -> str:
    """Return names as part of a sentence: the first `most` names and the number of the others.

    Examples:
        >>> listed(["cat", "dog", "ship"], most=2)
        'cat, dog and 1 more'
    """
    if not names:
        return "nothing"
    first = ", ".join(shortened(name) for name in names[:most])
    return first if len(names) <= most else f"{first} and {len(names) - most:,} more"


def in_order(models: Iterable[str]) -> list[str]:
    """Return names of models: the original first, the retrained model last."""
    return sorted(models, key=lambda name: {"original": 0, "retrained": 2}.get(name, 1))


@cache
def _settings() -> dict[str, Any]:
    """Return matplotlib's defaults, replaced by those of pour's figures."""
    of_the_user = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    defaults: Any = {name: value for name, value in dict(matplotlib.rcParamsDefault).items() if name not in of_the_user}
    with as_file(files("pour.report.figures") / "house.mplstyle") as path:
        house: Any = matplotlib.rc_params_from_file(path, use_default_template=False)
    installed = set(font_manager.get_font_names())
    fonts = ["DejaVu Sans", *(name for name in _FALLBACK_FONTS if name in installed)]
    return {**defaults, **house, "font.family": fonts}


def _colors(style: Style) -> dict[str, Any]:
    names = {
        style.background: ("figure.facecolor", "axes.facecolor"),
        style.text: ("text.color", "axes.titlecolor", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"),
        style.muted: ("axes.edgecolor", "xtick.color", "ytick.color", "hatch.color"),
        style.faint: ("grid.color",),
    }
    return {"savefig.facecolor": "auto", **{name: color for color, group in names.items() for name in group}}
