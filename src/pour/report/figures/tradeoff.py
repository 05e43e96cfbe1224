"""Forgetting against retention of several methods, as points of a plane."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from pour.auditing.measurement import Reading
from pour.errors import UsageError, check_choice
from pour.report.figures.labels import place_labels
from pour.report.figures.style import Theme, drawing, finish, plain_text, shortened
from pour.unlearning.registry import list_methods

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from pour.auditing.report import AuditReport
    from pour.report.figures.style import Style

__all__ = ["PlaneOf", "TradeoffData", "TradeoffPoint", "draw_tradeoff", "tradeoff_data"]

PlaneOf = Literal["accuracy", "representation"]
"""1 - Acc_f against Acc_r, or 1 - CKA_f against CKA_r, both with the original."""
DataNeeded = Literal["none", "forget", "retain"]
Numbers: TypeAlias = "NDArray[np.float64]"

_NAMES: dict[PlaneOf, tuple[str, str]] = {"accuracy": ("acc_f", "acc_r"), "representation": ("cka_f_o", "cka_r_o")}
_LABELS: dict[PlaneOf, tuple[str, str]] = {
    "accuracy": ("forgetting, $1 - $Acc$_f$", "retention, Acc$_r$"),
    "representation": ("forgetting, $1 - $CKA$_f^{(o)}$", "retention, CKA$_r^{(o)}$"),
}
# Marker and legend of the methods by the data that they need.
_NEEDS: dict[DataNeeded, tuple[str, str]] = {
    "none": ("o", "needs no data"),
    "forget": ("s", "needs forgotten images"),
    "retain": ("^", "needs retained images"),
}


@dataclass(frozen=True, kw_only=True)
class TradeoffPoint:
    """Point of a method or a reference model. Higher values are better in both directions."""

    name: str
    forgetting: Reading
    retention: Reading
    role: Literal["method", "original", "retrained"] = "method"
    needs: DataNeeded = "none"
    """Data that the method needs. A method that needs retained images counts as "retain"."""


@dataclass(frozen=True, kw_only=True)
class TradeoffData:
    """Points of one plane."""

    points: tuple[TradeoffPoint, ...]
    of: PlaneOf


def tradeoff_data(reports: Mapping[str, AuditReport], *, of: PlaneOf = "accuracy") -> TradeoffData:
    """Return a point for each report, and for the original and the retrained model of the first report with them.

    Args:
        reports: Reports by the name to draw, all of the same data and classes.
        of: Metrics of the plane.
    """
    check_choice("of", of, get_args(PlaneOf))
    if not reports:
        raise UsageError("There is no report to draw; give at least one.")
    first = next(iter(reports.values()))
    other = next((name for name, report in reports.items() if report.data != first.data), None)
    if other is not None:
        raise UsageError(f"The report {other!r} has other images or classes; draw it in a plane of its own.")
    lines = [tuple(report.line(name) for name in _NAMES[of]) for report in reports.values()]
    points: list[TradeoffPoint] = []
    for role in ("original", "retrained"):
        pairs = [(getattr(forget, role), getattr(retain, role)) for forget, retain in lines]
        if role == "original" and of == "representation":
            # The audit does not compare the original with itself.
            pairs = [(Reading(value=1.0), Reading(value=1.0))]
        pair = next((pair for pair in pairs if None not in pair), None)
        if pair is not None:
            points.append(TradeoffPoint(name=role, forgetting=_complement(pair[0]), retention=pair[1], role=role))
    for (name, report), (forget, retain) in zip(reports.items(), lines, strict=True):
        forgetting, retention = _complement(forget.unlearned), retain.unlearned
        points.append(TradeoffPoint(name=name, forgetting=forgetting, retention=retention, needs=_needs(report)))
    return TradeoffData(points=tuple(points), of=of)


def draw_tradeoff(data: TradeoffData, *, theme: Theme = "light") -> Figure:
    """Draw each point with its 95 % intervals in both directions. The upper right is best."""
    if not data.points:
        raise UsageError("There is no point to draw; give at least one method.")
    with drawing(theme) as style:
        figure = style.figure(4.6, 3.9)
        axes = figure.subplots()
        # Ends of the intervals and values of the points in both directions, (3, n, 2).
        readings = [[(*reading.bounds, reading.value) for reading in (p.forgetting, p.retention)] for p in data.points]
        low, high, places = np.array(readings).transpose(2, 0, 1)
        margin = np.maximum(0.07 * (high.max(axis=0) - low.min(axis=0)), 0.01)
        # The right margin has room for the name of the last point.
        left, right = low.min(axis=0) - margin, high.max(axis=0) + margin * (1.6, 1.0)
        axes.set(xlim=(left[0], right[0]), ylim=(left[1], right[1]))
        colors = _colors(data.points, style)
        for i, point in enumerate(data.points):
            reach = np.stack([places[i] - low[i], high[i] - places[i]])[..., None]
            _draw_point(axes, point, places[i], reach, colors[i], style)
        across, up = _LABELS[data.of]
        axes.set(xlabel=f"{across}  (better →)", ylabel=f"{up}  (better →)")
        axes.grid(alpha=0.7)
        methods = [point for point in data.points if point.role == "method"]
        keys = [
            style.key(text, marker=marker, color=style.muted, size=5)
            for need, (marker, text) in _NEEDS.items()
            if any(point.needs == need for point in methods)
        ]
        style.legend(figure, keys, 3)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        names = [plain_text(point.name) for point in data.points]
        place_labels(axes, places, (low, high), names, colors, style)
        words = [
            f"{shortened(point.name)} ({point.forgetting.value:.2f}, {point.retention.value:.2f})"
            for point in data.points
        ]
        return finish(style, figure, f"Forgetting and retention by {data.of}: {', '.join(words)}.")


def _needs(report: AuditReport) -> DataNeeded:
    methods = report.models["unlearned"].methods
    needs = {need for entry in list_methods() if entry.name in methods for need in entry.needs}
    return "retain" if needs & {"retain", "build"} else "forget" if "forget" in needs else "none"


def _complement(reading: Reading) -> Reading:
    low, high = (None if end is None else 1 - end for end in (reading.high, reading.low))
    return Reading(value=1 - reading.value, low=low, high=high, n=reading.n)


def _colors(points: Sequence[TradeoffPoint], style: Style) -> list[str]:
    # Gold and grey are the colours of the references.
    palette = [color for i, color in enumerate(style.class_palette) if i not in (1, 10)]
    methods = [i for i, point in enumerate(points) if point.role == "method"]
    return [
        palette[methods.index(i) % len(palette)] if i in methods else style.role_color(point.role)
        for i, point in enumerate(points)
    ]


def _draw_point(axes: Axes, point: TradeoffPoint, place: Numbers, reach: Numbers, color: str, style: Style) -> None:
    axes.errorbar(
        place[:1],
        place[1:],
        xerr=reach[:, 0],
        yerr=reach[:, 1],
        color=color,
        ecolor=color,
        elinewidth=0.9,
        marker={"retrained": "*", "original": "X"}.get(point.role, _NEEDS[point.needs][0]),
        markersize=11 if point.role == "retrained" else 6,
        markeredgecolor=style.background,
        markeredgewidth=0.6,
        zorder=4 if point.role == "retrained" else 3,
    )
