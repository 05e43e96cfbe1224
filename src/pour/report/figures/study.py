"""The three terms of the bound along each method, and what forgetting a class costs against how far it stands apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, plain_text, shortened

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pour.report.figures.style import Style

__all__ = ["MethodPath", "SeparationPoint", "draw_study"]

_TERMS = {
    "separation": (r"$|\alpha - \beta|\,K(P_u, P_n)$", "-"),
    "forgotten": (r"$\beta\,K(P_u, Q_u)$", (0, (1, 1.2))),
    "retained": (r"$(1 - \beta)\,K(P_n, Q_n)$", (0, (5, 1.5))),
}
_MARKERS = "osD^vP*X"
# Of a name above the points, as shares of the axes.
_ROW_HEIGHT = 0.055
_LABEL_WIDTH = 0.09


@dataclass(frozen=True, kw_only=True)
class MethodPath:
    """A method's way: at each look alpha, the three terms and the discrepancy that they bound."""

    steps: tuple[int, ...]
    alpha: tuple[float, ...]
    separation: tuple[float, ...]
    forgotten: tuple[float, ...]
    retained: tuple[float, ...]
    total: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class SeparationPoint:
    """One class: how far it stands from the others, and what forgetting it did to them."""

    name: str
    separation: float
    change: float
    """Of the retained test accuracy, as a fraction."""


def draw_study(
    paths: Mapping[str, MethodPath],
    points: Mapping[str, Sequence[SeparationPoint]],
    correlation: Mapping[str, float | None],
    *,
    theme: Theme = "light",
) -> Figure:
    """Draw a panel of the three terms for each method, and below them the classes by separation and cost.

    Args:
        paths: by method.
        points: the classes, by method.
        correlation: Spearman's, by method; None where it is not defined.
        theme: light or dark.
    """
    if not paths or not any(points.values()):
        raise UsageError("A study needs at least one method that was followed and one class that was forgotten.")
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 5.2)
        top, bottom = np.asarray(figure.subfigures(2, 1, height_ratios=(1.0, 1.15))).flat
        panels = top.subplots(1, len(paths), sharey=True, squeeze=False)[0]
        for axes, (method, path) in zip(panels, paths.items(), strict=True):
            _draw_terms(axes, path, style)
            axes.set_title(method)
        panels[0].set_ylabel("energy distance")
        top.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
        handles = _draw_points(bottom.subplots(), points, correlation, style)
        bottom.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        words = [
            f"{method} {path.alpha[0]:.3f} to {path.alpha[-1]:.3f}, discrepancy {path.total[0]:.3f} to "
            f"{path.total[-1]:.3f}"
            for method, path in paths.items()
        ]
        return finish(figure, f"Share of images given to the forgotten class, and its discrepancy: {'; '.join(words)}.")


def _draw_terms(axes: Axes, path: MethodPath, style: Style) -> None:
    for (name, (label, line)), color in zip(_TERMS.items(), style.class_palette, strict=False):
        axes.plot(path.steps, getattr(path, name), linestyle=line, color=color, label=label)
    axes.plot(path.steps, path.total, color=style.text, linewidth=2.2, label="$K(P, Q)$")
    axes.plot(path.steps, path.alpha, color=style.forgotten, linestyle=(0, (3, 1, 1, 1)), label=r"$\alpha$")
    axes.set(xlabel="steps", ylim=(0, None))
    axes.grid(axis="y")


def _draw_points(
    axes: Axes,
    points: Mapping[str, Sequence[SeparationPoint]],
    correlation: Mapping[str, float | None],
    style: Style,
) -> list[Line2D]:
    handles: list[Line2D] = []
    for number, (method, classes) in enumerate(points.items()):
        color, marker = style.class_palette[number % len(style.class_palette)], _MARKERS[number % len(_MARKERS)]
        axes.scatter(
            [point.separation for point in classes],
            [100 * point.change for point in classes],
            color=color,
            marker=marker,
            s=22,
            zorder=3,
        )
        rank = correlation.get(method)
        label = method if rank is None else rf"{method} ($\rho$ = {rank:+.2f})"
        handles.append(Line2D([], [], color=color, marker=marker, linestyle="", label=label))
    places = {point.name: point.separation for classes in points.values() for point in classes}
    for name, row in _label_rows(places).items():
        axes.axvline(places[name], color=style.muted, linewidth=0.5, alpha=0.35, zorder=1)
        axes.text(
            places[name],
            0.97 - _ROW_HEIGHT * row,
            plain_text(shortened(name)),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7,
            color=style.muted,
            bbox={"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.0},
        )
    axes.axhline(0, color=style.muted, linewidth=0.8)
    axes.set(xlabel="how far the class stands from the others in the original", ylabel="change of Acc_r, points")
    # One method may cost hundredths of a point and another most of the accuracy.
    axes.set_yscale("symlog", linthresh=1.0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y")
    axes.margins(y=0.18)
    bottom, top = axes.get_ylim()
    scale = axes.yaxis.get_transform()
    low, high = scale.transform([bottom, top])
    room = _ROW_HEIGHT * (1 + max(_label_rows(places).values(), default=0))
    # Names stand in rows above all points.
    axes.set_ylim(bottom, float(scale.inverted().transform([low + (high - low) / (1 - room)])[0]))
    return handles


def _label_rows(places: Mapping[str, float]) -> dict[str, int]:
    """In which row a name stands, so that no two of a row touch."""
    width = _LABEL_WIDTH * (max(places.values(), default=0.0) - min(places.values(), default=0.0))
    ends: list[float] = []
    rows: dict[str, int] = {}
    for name in sorted(places, key=places.__getitem__):
        row = next((row for row, end in enumerate(ends) if places[name] > end + width), len(ends))
        ends[row : row + 1] = [places[name]]
        rows[name] = row
    return rows
