"""Draw the terms of the bound during each method's training, and the cost of forgetting each class."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from pour.report.figures.style import Style

__all__ = ["Point", "Series", "draw_study"]

Series: TypeAlias = "Mapping[str, Sequence[float]]"
"""Measurements of one method by name: steps, alpha, the terms separation, forgotten and retained, and their total."""
Point: TypeAlias = "tuple[str, float, float]"
"""Name of a class, its distance from the others, and the change of the retained test accuracy, a fraction."""

_TERMS = {
    "separation": (r"$|\alpha - \beta|\,K(P_u, P_n)$", "-"),
    "forgotten": (r"$\beta\,K(P_u, Q_u)$", (0, (1, 1.2))),
    "retained": (r"$(1 - \beta)\,K(P_n, Q_n)$", (0, (5, 1.5))),
}
_MARKERS = "osD^vP*X"
# Height and width of a name above the points, as shares of the axes.
_ROW_HEIGHT = 0.055
_LABEL_WIDTH = 0.09


def draw_study(
    series: Mapping[str, Series],
    points: Mapping[str, Sequence[Point]],
    correlation: Mapping[str, float | None],
    *,
    theme: Theme = "light",
) -> Figure:
    """Draw a panel of the three terms for each method, and below them the classes by separation and cost.

    Args:
        series: Measurements by method.
        points: Classes by method.
        correlation: Spearman's rank correlation by method; None if it is undefined.
        theme: Light or dark.
    """
    if not series or not any(points.values()):
        raise UsageError("A study needs at least one method that was followed and one class that was forgotten.")
    with drawing(theme) as style:
        figure = style.figure(FULL_WIDTH, 5.2)
        top, bottom = np.asarray(figure.subfigures(2, 1, height_ratios=(1.0, 1.15))).flat
        panels = top.subplots(1, len(series), sharey=True, squeeze=False)[0]
        for axes, (method, values) in zip(panels, series.items(), strict=True):
            _draw_terms(axes, values, style)
            axes.set_title(method)
        panels[0].set_ylabel("energy distance")
        top.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
        handles = _draw_points(bottom.subplots(), points, correlation, style)
        bottom.legend(handles=handles, loc="outside lower center", ncols=len(handles))
        words = []
        for method, values in series.items():
            alpha, total = values["alpha"], values["total"]
            words.append(f"{method} {alpha[0]:.3f} to {alpha[-1]:.3f}, discrepancy {total[0]:.3f} to {total[-1]:.3f}")
        return finish(
            style, figure, f"Share of images given to the forgotten class, and its discrepancy: {'; '.join(words)}."
        )


def _draw_terms(axes: Axes, values: Series, style: Style) -> None:
    steps = values["steps"]
    for (name, (label, line)), color in zip(_TERMS.items(), style.class_palette, strict=False):
        axes.plot(steps, values[name], linestyle=line, color=color, label=label)
    axes.plot(steps, values["total"], color=style.text, linewidth=2.2, label="$K(P, Q)$")
    axes.plot(steps, values["alpha"], color=style.forgotten, linestyle=(0, (3, 1, 1, 1)), label=r"$\alpha$")
    axes.set(xlabel="steps", ylim=(0, None))
    axes.grid(axis="y")


def _draw_points(
    axes: Axes, points: Mapping[str, Sequence[Point]], correlation: Mapping[str, float | None], style: Style
) -> list[Line2D]:
    """Draw the classes of all methods, and return the entries of the legend."""
    handles: list[Line2D] = []
    for number, (method, classes) in enumerate(points.items()):
        color, marker = style.class_palette[number % len(style.class_palette)], _MARKERS[number % len(_MARKERS)]
        separations, changes = [point[1] for point in classes], [100 * point[2] for point in classes]
        axes.scatter(separations, changes, color=color, marker=marker, s=22, zorder=3)
        rank = correlation.get(method)
        label = method if rank is None else rf"{method} ($\rho$ = {rank:+.2f})"
        handles.append(style.key(label, marker=marker, color=color))
    axes.axhline(0, color=style.muted, linewidth=0.8)
    axes.set(xlabel="how far the class stands from the others in the original", ylabel="change of Acc_r, points")
    # One method may cost hundredths of a point and another most of the accuracy.
    axes.set_yscale("symlog", linthresh=1.0)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y")
    axes.margins(y=0.18)
    _write_names(axes, {name: place for classes in points.values() for name, place, _ in classes}, style)
    return handles


def _write_names(axes: Axes, places: Mapping[str, float], style: Style) -> None:
    """Write the names of classes in rows above all points, each with a line down to its points."""
    rows = _label_rows(places)
    box = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.0}
    for name, row in rows.items():
        axes.axvline(places[name], color=style.muted, linewidth=0.5, alpha=0.35, zorder=1)
        axes.text(
            places[name],
            0.97 - _ROW_HEIGHT * row,
            plain_text(name),
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7,
            color=style.muted,
            bbox=box,
        )
    bottom, top = axes.get_ylim()
    scale = axes.yaxis.get_transform()
    low, high = scale.transform([bottom, top])
    height = _ROW_HEIGHT * (1 + max(rows.values(), default=0))
    axes.set_ylim(bottom, float(scale.inverted().transform([low + (high - low) / (1 - height)])[0]))


def _label_rows(places: Mapping[str, float]) -> dict[str, int]:
    """Return the row of each name, so that no two names in a row touch."""
    width = _LABEL_WIDTH * (max(places.values(), default=0.0) - min(places.values(), default=0.0))
    ends: list[float] = []
    rows: dict[str, int] = {}
    for name in sorted(places, key=places.__getitem__):
        row = next((row for row, end in enumerate(ends) if places[name] > end + width), len(ends))
        ends[row : row + 1] = [places[name]]
        rows[name] = row
    return rows
