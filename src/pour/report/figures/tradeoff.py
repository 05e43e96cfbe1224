"""The trade-off plane: what a method forgets against what it keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from matplotlib.lines import Line2D

from pour.auditing.measurement import Reading
from pour.errors import UsageError
from pour.report.figures.labels import place_labels
from pour.report.figures.style import Theme, drawing, finish, plain_text, shortened
from pour.unlearning.registry import list_methods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pour.auditing.report import AuditReport
    from pour.report.figures.style import Style

__all__ = ["PlaneOf", "TradeoffData", "TradeoffPoint", "draw_tradeoff", "tradeoff_data"]

PlaneOf = Literal["accuracy", "representation"]
"""1 - Acc_f against Acc_r, or 1 - CKA_f against CKA_r, both with the original."""
DataNeeded = Literal["none", "forget", "retain"]

_NAMES: dict[PlaneOf, tuple[str, str]] = {"accuracy": ("acc_f", "acc_r"), "representation": ("cka_f_o", "cka_r_o")}
_LABELS: dict[PlaneOf, tuple[str, str]] = {
    "accuracy": ("forgetting, $1 - $Acc$_f$", "retention, Acc$_r$"),
    "representation": ("forgetting, $1 - $CKA$_f^{(o)}$", "retention, CKA$_r^{(o)}$"),
}
_MARKERS: dict[DataNeeded, str] = {"none": "o", "forget": "s", "retain": "^"}
_NEEDS: dict[DataNeeded, str] = {
    "none": "needs no data",
    "forget": "needs forgotten images",
    "retain": "needs retained images",
}


@dataclass(frozen=True, kw_only=True)
class TradeoffPoint:
    """One method, or a reference, in the plane; both readings are better when higher."""

    name: str
    forgetting: Reading
    retention: Reading
    role: Literal["method", "original", "retrained"] = "method"
    needs: DataNeeded = "none"
    """The most that the method needs to see."""


@dataclass(frozen=True, kw_only=True)
class TradeoffData:
    """The points of one plane."""

    points: tuple[TradeoffPoint, ...]
    of: PlaneOf


def tradeoff_data(reports: Mapping[str, AuditReport], *, of: PlaneOf = "accuracy") -> TradeoffData:
    """Take a point from each report, and the original and the retrained model from the first that has them.

    Args:
        reports: by the name to show, all of the same data and classes.
        of: which measures span the plane.
    """
    if of not in get_args(PlaneOf):
        raise UsageError(f"of is {of!r}; choose 'accuracy' or 'representation'.")
    if not reports:
        raise UsageError("There is no report to draw; give at least one.")
    first = next(iter(reports.values()))
    other = next((name for name, report in reports.items() if report.data != first.data), None)
    if other is not None:
        raise UsageError(f"The report {other!r} is of other images or classes; one plane compares like with like.")
    forget, retain = _NAMES[of]
    needed = {entry.name: entry.needs for entry in list_methods()}
    points: list[TradeoffPoint] = []
    for role in ("original", "retrained"):
        pairs = [
            (getattr(report.line(forget), role), getattr(report.line(retain), role)) for report in reports.values()
        ]
        pair = next((pair for pair in pairs if None not in pair), None)
        if role == "original" and of == "representation":
            # Like itself in everything, which an audit does not measure.
            pair = (Reading(value=1.0), Reading(value=1.0))
        if pair is not None:
            points.append(TradeoffPoint(name=role, forgetting=_complement(pair[0]), retention=pair[1], role=role))
    for name, report in reports.items():
        methods = report.models["unlearned"].methods if "unlearned" in report.models else ()
        needs = {need for method in methods for need in needed.get(method, ())}
        points.append(
            TradeoffPoint(
                name=name,
                forgetting=_complement(report.line(forget).unlearned),
                retention=report.line(retain).unlearned,
                needs="retain" if needs & {"retain", "build"} else "forget" if "forget" in needs else "none",
            )
        )
    return TradeoffData(points=tuple(points), of=of)


def draw_tradeoff(data: TradeoffData, *, theme: Theme = "light") -> Figure:
    """Draw the plane, better towards the upper right, each point with its 95 % interval in both directions."""
    if not data.points:
        raise UsageError("There is no point to draw; give at least one method.")
    with drawing(theme) as style:
        figure = style.figure(4.6, 3.9)
        axes = figure.subplots()
        _limits(axes, data.points)
        colors = _colors(data.points, style)
        for point, color in zip(data.points, colors, strict=True):
            _draw_point(axes, point, color, style)
        across, up = _LABELS[data.of]
        axes.set(xlabel=f"{across}  (better →)", ylabel=f"{up}  (better →)")
        axes.grid(alpha=0.7)
        needs = [need for need in _NEEDS if any(p.role == "method" and p.needs == need for p in data.points)]
        handles = [
            Line2D([], [], marker=_MARKERS[need], linestyle="", color=style.muted, markersize=5, label=_NEEDS[need])
            for need in needs
        ]
        if handles:
            figure.legend(handles=handles, loc="outside upper center", ncols=3)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        place_labels(
            axes,
            np.array([[point.forgetting.value, point.retention.value] for point in data.points]),
            [plain_text(point.name) for point in data.points],
            colors,
            style,
            bars=[(point.forgetting.bounds, point.retention.bounds) for point in data.points],
        )
        methods = [
            f"{shortened(point.name)} ({point.forgetting.value:.2f}, {point.retention.value:.2f})"
            for point in data.points
        ]
        return finish(figure, f"Forgetting and retention by {data.of}: {', '.join(methods)}.")


def _complement(reading: Reading) -> Reading:
    low, high = reading.bounds
    known = reading.low is not None and reading.high is not None
    return Reading(
        value=1 - reading.value, low=1 - high if known else None, high=1 - low if known else None, n=reading.n
    )


def _colors(points: Sequence[TradeoffPoint], style: Style) -> list[str]:
    methods = [i for i, point in enumerate(points) if point.role == "method"]
    # Gold and grey belong to the references.
    palette = [color for color in style.class_palette if color not in (style.class_palette[1], style.class_palette[10])]
    return [
        palette[methods.index(i) % len(palette)] if i in methods else style.role_color(point.role)
        for i, point in enumerate(points)
    ]


def _draw_point(axes: Axes, point: TradeoffPoint, color: str, style: Style) -> None:
    x, y = point.forgetting.value, point.retention.value
    reach = [
        np.array([[value - bounds[0]], [bounds[1] - value]])
        for value, bounds in ((x, point.forgetting.bounds), (y, point.retention.bounds))
    ]
    axes.errorbar(
        [x],
        [y],
        xerr=reach[0],
        yerr=reach[1],
        color=color,
        ecolor=color,
        elinewidth=0.9,
        marker="*" if point.role == "retrained" else "X" if point.role == "original" else _MARKERS[point.needs],
        markersize=11 if point.role == "retrained" else 6,
        markeredgecolor=style.background,
        markeredgewidth=0.6,
        zorder=4 if point.role == "retrained" else 3,
    )


def _limits(axes: Axes, points: Sequence[TradeoffPoint]) -> None:
    for side, readings in (
        ("x", [point.forgetting for point in points]),
        ("y", [point.retention for point in points]),
    ):
        bounds = np.array([reading.bounds for reading in readings])
        low, high = float(bounds.min()), float(bounds.max())
        margin = max(0.07 * (high - low), 0.01)
        # Room beside the last point for its name.
        limits = (low - margin, high + margin * (1.6 if side == "x" else 1.0))
        (axes.set_xlim if side == "x" else axes.set_ylim)(*limits)
