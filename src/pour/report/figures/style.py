"""What all figures share: sizes, fonts, colours that colour-blind readers tell apart, and how text is made safe."""

from __future__ import annotations

import contextlib
import textwrap
import threading
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.text import Text
    from numpy.typing import NDArray

__all__ = [
    "FULL_WIDTH",
    "ROLE_TITLES",
    "Style",
    "Theme",
    "drawing",
    "finish",
    "listed",
    "plain_text",
    "settings",
    "shortened",
    "style_of",
]

Theme = Literal["light", "dark"]
FULL_WIDTH = 7.0
"""Inches: the text width of a two-column paper."""

ROLE_TITLES = {
    "original": "original",
    "unlearned": "unlearned",
    "retrained": "retrained (reference)",
    "retrained_second": "retrained, second seed",
}
_NAME_LENGTH = 28
# Without the reds and browns, which a reader could take for the forgotten class.
_CLASSES: dict[Theme, tuple[str, ...]] = {
    "light": (
        "#0072b2",
        "#e69f00",
        "#009e73",
        "#cc79a7",
        "#56b4e9",
        "#8f8f2c",
        "#4b3fa0",
        "#d9c667",
        "#a844a0",
        "#176e38",
        "#7f8c9a",
        "#3fb5a3",
    ),
    "dark": (
        "#4c9be8",
        "#f0ae1f",
        "#22b98c",
        "#df95bd",
        "#86cdf7",
        "#b5b54a",
        "#9388ea",
        "#e8d98b",
        "#b565d8",
        "#58a873",
        "#9aa7b4",
        "#6fd6c6",
    ),
}
# Families that hold scripts which the default font lacks; those installed are asked glyph by glyph.
_FALLBACK_FONTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS")
# matplotlib's settings are global while a figure is made, so one thread draws at a time.
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Style:
    """The colours of a theme, and the few things that several figures draw alike."""

    theme: Theme
    background: str
    text: str
    muted: str
    """Secondary text, axes and notes."""
    faint: str
    """Grid lines and fills behind the data."""
    forgotten: str
    """The forgotten class, in every figure."""
    reference: str
    """Gold: the retrained model."""
    accent: str
    """The unlearned model."""
    baseline: str
    """The original model."""
    shares: tuple[str, ...]
    """From nothing to everything: the colours of a share between 0 and 1."""

    @property
    def class_palette(self) -> tuple[str, ...]:
        """Colours of retained classes; more classes than colours start over."""
        return _CLASSES[self.theme]

    def class_colors(self, num_classes: int, forgotten: Collection[int]) -> list[str]:
        """A colour to each class: dark red to the forgotten ones, the palette in turn to the others."""
        palette, colors, used = self.class_palette, [], 0
        for label in range(num_classes):
            if label in forgotten:
                colors.append(self.forgotten)
            else:
                colors.append(palette[used % len(palette)])
                used += 1
        return colors

    def role_color(self, role: str) -> str:
        """The colour of a model by its role; whatever is no reference is an unlearned model."""
        return {"original": self.baseline, "retrained": self.reference, "retrained_second": self.reference}.get(
            role, self.accent
        )

    def share_map(self) -> Colormap:
        """The colour map of shares; what is missing is grey."""
        return LinearSegmentedColormap.from_list("pour", self.shares).with_extremes(bad=self.faint)

    def figure(self, width: float, height: float) -> Figure:
        """An empty figure that belongs to no window, sizes in inches."""
        return Figure(figsize=(width, height), layout="constrained")

    def frame_reference(self, axes: Axes) -> None:
        """Frame a panel in gold: it shows the retrained model."""
        for spine in axes.spines.values():
            spine.set(visible=True, color=self.reference, linewidth=2.2)

    def bare(self, axes: Axes) -> None:
        """Take ticks away and leave a thin frame: a panel whose coordinates mean nothing."""
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set(visible=True, color=self.faint, linewidth=0.8)

    def empty_panel(self, axes: Axes, reason: str) -> None:
        """Say in words why a panel holds nothing."""
        self.bare(axes)
        axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", color=self.muted, wrap=True)

    def halo(self, width: float = 2.0) -> list[withStroke]:
        """Path effects that keep text readable over lines and points."""
        return [withStroke(linewidth=width, foreground=self.background)]

    def write_cells(self, axes: Axes, values: NDArray[np.float64], texts: Sequence[Sequence[str]], size: float) -> None:
        """Write a text into each cell of a matrix drawn with :meth:`share_map`, light on dark and dark on light."""
        colors = self.share_map()
        for (i, j), value in np.ndenumerate(values):
            if texts[i][j]:
                red, green, blue, _ = colors(value)
                ink = "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.55 else "#ffffff"
                axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=size, color=ink)

    def note(self, figure: Figure, sentences: Sequence[str]) -> Text | None:
        """Put what a reader must know to read the figure under it, such as how many points were left out."""
        if not sentences:
            return None
        # A letter of this size is about 0.046 inches wide; a narrow figure takes more than one line.
        letters = max(20, int(figure.get_figwidth() / 0.046))
        text = textwrap.fill(" ".join(sentences), width=letters)
        return figure.supxlabel(text, fontsize=6.5, color=self.muted, x=0.01, ha="left")

    def name_places(self, axes: Axes, names: Sequence[str], forgotten: Collection[int], *, width: float) -> None:
        """Name the places 0, 1, ... across, slanted where they would run into each other.

        Args:
            axes: the panel.
            names: ready to draw.
            forgotten: places whose names are in the forgotten class's colour.
            width: of the panel, in inches.
        """
        # A letter of this size is about 0.06 inches wide.
        crowded = len(names) * max(map(len, names)) * 0.06 > 0.94 * width
        slant: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(range(len(names)), names, **slant)
        axes.tick_params(axis="x", length=0)
        for place in forgotten:
            axes.get_xticklabels()[place].set(color=self.forgotten, fontweight="bold")

    def mark_row(self, axes: Axes, row: int, width: float) -> None:
        """Frame one row of a matrix in the forgotten class's colour."""
        axes.add_patch(
            Rectangle((-0.5, row - 0.5), width, 1, fill=False, edgecolor=self.forgotten, linewidth=1.2, clip_on=False)
        )


_STYLES: dict[Theme, Style] = {
    "light": Style(
        theme="light",
        background="#ffffff",
        text="#1c2128",
        muted="#59636e",
        faint="#d8dee4",
        forgotten="#8b0000",
        reference="#c9950c",
        accent="#0072b2",
        baseline="#6b7680",
        shares=("#f7f9fb", "#c3dcee", "#5fa3d0", "#1467a8", "#08306b"),
    ),
    "dark": Style(
        theme="dark",
        background="#14171c",
        text="#e6e9ed",
        muted="#a2adb8",
        faint="#39414b",
        forgotten="#e5534b",
        reference="#e3b341",
        accent="#5aa9ee",
        baseline="#98a3ae",
        shares=("#1b2028", "#1e3a57", "#2a6ba6", "#5aa9ee", "#e3f1ff"),
    ),
}


def style_of(theme: Theme) -> Style:
    """The colours of a theme."""
    if theme not in get_args(Theme):
        raise UsageError(f"theme is {theme!r}; choose 'light' or 'dark'.")
    return _STYLES[theme]


@contextlib.contextmanager
def drawing(theme: Theme) -> Iterator[Style]:
    """Draw in a theme's style; matplotlib's own settings, whatever the user made of them, are as before afterwards.

    Example:
        >>> with drawing("light") as style:
        ...     figure = style.figure(3, 2)
        >>> style.forgotten
        '#8b0000'
    """
    style = style_of(theme)
    with settings(style):
        yield style


def finish(figure: Figure, description: str) -> Figure:
    """Lay the figure out once and for all, so that every later saving gives the same bytes.

    Args:
        figure: everything is drawn.
        description: what it shows, for those who cannot see it; kept as the figure's label.
    """
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    # Without an engine a saving draws once; with one that does nothing it would draw twice.
    figure.set_layout_engine(None)
    figure.set_label(description)
    return figure


@contextlib.contextmanager
def settings(style: Style | None = None) -> Iterator[None]:
    """Use matplotlib's defaults with ours on top, for one thread at a time."""
    chosen: Any = {**_defaults(), **_common(), **(_themed(style) if style else {})}
    with _LOCK, matplotlib.rc_context(chosen):
        yield


def plain_text(text: str, *, length: int = _NAME_LENGTH) -> str:
    r"""A class name as it is, safe to draw: dollars start no formula, control characters are gone, long names are cut.

    Example:
        >>> plain_text("cost $5 <b>")
        'cost \\$5 <b>'
    """
    return shortened(text, length=length).replace("$", r"\$")


def shortened(text: str, *, length: int = _NAME_LENGTH) -> str:
    """One line of at most ``length`` characters, without control characters."""
    line = " ".join("".join(" " if unicodedata.category(char)[0] == "C" else char for char in text).split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def listed(names: Sequence[str], *, most: int = 4) -> str:
    """Names in a sentence, the first few where there are many.

    Example:
        >>> listed(["cat", "dog", "ship"], most=2)
        'cat, dog and 1 more'
    """
    if not names:
        return "nothing"
    shown = ", ".join(shortened(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


@cache
def _defaults() -> dict[str, Any]:
    kept = {"backend", "backend_fallback", "interactive", "toolbar", "timezone"}
    return {name: matplotlib.rcParamsDefault[name] for name in matplotlib.rcParamsDefault if name not in kept}


@cache
def _common() -> dict[str, Any]:
    known = set(font_manager.get_font_names())
    return {
        "font.family": ["DejaVu Sans", *(name for name in _FALLBACK_FONTS if name in known)],
        "mathtext.fontset": "dejavusans",
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.titlepad": 5,
        "axes.labelsize": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.7,
        "axes.axisbelow": True,
        "xtick.labelsize": 7,
        "ytick.labelsize": 7,
        "xtick.major.width": 0.7,
        "ytick.major.width": 0.7,
        "xtick.major.size": 2.5,
        "ytick.major.size": 2.5,
        "lines.linewidth": 1.5,
        "lines.solid_capstyle": "round",
        "grid.linewidth": 0.6,
        "legend.fontsize": 7,
        "legend.frameon": False,
        "legend.handlelength": 1.4,
        "legend.columnspacing": 1.2,
        "hatch.linewidth": 0.6,
        "savefig.dpi": 200,
        "figure.dpi": 200,
        "svg.fonttype": "path",
        "svg.hashsalt": "pour",
        "pdf.fonttype": 42,
    }


def _themed(style: Style) -> dict[str, Any]:
    return {
        "figure.facecolor": style.background,
        "savefig.facecolor": "auto",
        "axes.facecolor": style.background,
        "text.color": style.text,
        "axes.titlecolor": style.text,
        "axes.labelcolor": style.text,
        "axes.edgecolor": style.muted,
        "xtick.color": style.muted,
        "ytick.color": style.muted,
        "xtick.labelcolor": style.text,
        "ytick.labelcolor": style.text,
        "grid.color": style.faint,
        "hatch.color": style.muted,
    }
