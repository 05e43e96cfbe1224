"""Reports as tables for the terminal."""

from __future__ import annotations

import io
import shutil
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from pour.metrics.catalogue import metric_of, title_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pour.auditing.measurement import Reading
    from pour.auditing.report import AuditReport, Comparison, Line
    from pour.auditing.verdict import Verdict

__all__ = ["as_text", "comparison_table", "report_tables", "summary_text"]

_WIDTH = 150
_STYLES: dict[Verdict, str] = {
    "within its interval": "green",
    "better": "green",
    "leaks more": "red",
    "destroyed": "magenta",
    "as the original": "yellow",
    "no reference": "dim",
}
_TITLES = {
    "scores": "what the model answers",
    "features": "features that the head sees",
    "raw": "raw features of the encoder, before the projector",
}


def report_tables(report: AuditReport) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [_heading(report)]
    for section, title in _TITLES.items():
        lines = [line for line in report.lines if line.section == section]
        if lines:
            parts.append(_lines_table(lines, title))
    if report.discrepancies:
        parts.append(_discrepancy_table(report))
    if report.relearning:
        parts.append(_relearning_table(report))
    parts += [Text(f"note: {note}") for note in report.notes]
    parts += ["", summary_text(report)]
    return Group(*parts)


def summary_text(report: AuditReport) -> RenderableType:
    """Return the three statements of the report, wrapped to the terminal's width."""
    # A table needs more columns than a terminal may have; the statements do not.
    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    return Constrain(Text("\n".join(report.summary)), width)


def comparison_table(comparison: Comparison) -> RenderableType:
    """Two reports side by side."""
    table = Table("metric", "first", "second", "change", "first's verdict", "second's verdict")
    for row in comparison.rows:
        change = f"{row.change:+.4f}" + (" *" if row.clear else "")
        verdicts = [f"[{_STYLES[verdict]}]{verdict}[/]" for verdict in row.verdicts]
        table.add_row(Text(row.name), f"{row.first.value:.4f}", f"{row.second.value:.4f}", change, *verdicts)
    parts: list[RenderableType] = [table, "* each value is outside the other's 95 % interval"]
    for name, missing in (("first", comparison.only_first), ("second", comparison.only_second)):
        if missing:
            parts.append(Text(f"only in the {name}: {', '.join(missing)}"))
    if not comparison.same_data:
        parts.append("note: the reports are of different data; the numbers do not compare.")
    return Group(*parts)


def as_text(content: RenderableType) -> str:
    """What ``print`` shows where rich is not at work: the same tables without colour."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(content)
    return captured.get().rstrip("\n")


def _heading(report: AuditReport) -> Text:
    names = ", ".join(report.data.forgotten_names)
    methods = ", ".join(report.models["unlearned"].methods) or "no recorded method"
    references = [role.replace("_", " ") for role in report.models if role.startswith("retrained")]
    counts = ", ".join(f"{split} {f} + {r}" for split, (f, r) in report.data.counts.items())
    # Names are data, and may hold what rich would take for markup.
    return Text(
        f"Audit of {methods}: {names} forgotten, {report.data.name}; images forgotten + retained: {counts}.\n"
        f"Read against: {', '.join(references) or 'no retrained model, so there are no verdicts'}."
    )


def _lines_table(lines: list[Line], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("metric", no_wrap=True)
    for name in ("unlearned", "debiased", "original", "retrained", "n"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    previous = None
    for line in lines:
        family = metric_of(line.name).family
        if previous is not None and family != previous:
            table.add_section()
        previous = family
        table.add_row(
            Text(title_of(line.name)),
            _cell(line.unlearned),
            "" if line.unlearned.debiased is None else f"{line.unlearned.debiased:.3f}",
            _cell(line.original, interval=False),
            _cell(line.retrained),
            "" if line.unlearned.n is None else f"{line.unlearned.n:,}",
            f"[{_STYLES[line.verdict]}]{line.verdict}[/]",
        )
    return table


def _cell(reading: Reading | None, *, interval: bool = True) -> str:
    if reading is None:
        return ""
    text = f"{reading.value:.3f}"
    if interval and reading.low is not None and reading.high is not None:
        text += f" ({reading.low:.3f} to {reading.high:.3f})"
    return text


def _discrepancy_table(report: AuditReport) -> Table:
    table = Table(title="distance to the retrained model and its terms (Definition 2.1)", title_justify="left")
    names = ("metric", "features", "total", "bounds", "separation", "forgotten", "retained", "original's", "floor", "")
    for name in names:
        table.add_column(name, justify="left" if name in ("metric", "features", "") else "right", no_wrap=True)
    for found in report.discrepancies:
        bounds = "" if found.lower is None or found.upper is None else f"{found.lower:.3f} to {found.upper:.3f}"
        terms = [found.separation, found.forgotten, found.retained, found.original, found.floor]
        below = "" if found.epsilon is None else f", epsilon {found.epsilon:.3f}"
        table.add_row(
            found.metric,
            found.view,
            f"{found.total:.3f}",
            bounds,
            *("" if term is None else f"{term:.3f}" for term in terms),
            f"{found.decision}{below}",
        )
    return table


def _relearning_table(report: AuditReport) -> Table:
    curves = report.relearning
    each = curves[0].images_per_class
    title = f"accuracy on the forgotten classes after steps of relearning from {each} images per class"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for step in curves[0].steps:
        table.add_column(str(step), justify="right")
    for curve in curves:
        table.add_row(curve.role, *(f"{point.value:.3f}" for point in curve.forget))
    return table
