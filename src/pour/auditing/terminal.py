"""Reports as tables for the terminal."""

from __future__ import annotations

import io
import shutil
from itertools import groupby
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
_WORDS = frozenset({"metric", "features", "verdict", "model", ""})
_TITLES = {
    "scores": "what the model answers",
    "features": "features that the head sees",
    "raw": "raw features of the encoder, before the projector",
}


def report_tables(report: AuditReport) -> RenderableType:
    """Return all tables of a report with its notes and statements."""
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
    """Return the differences of two reports as a table."""
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
    """Return tables as text without colour, for ``print`` outside of rich."""
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(content)
    return captured.get().rstrip("\n")


def _heading(report: AuditReport) -> Text:
    names = ", ".join(report.data.forgotten_names)
    methods = ", ".join(report.models["unlearned"].methods) or "no recorded method"
    references = [role.replace("_", " ") for role in report.models if role.startswith("retrained")]
    counts = ", ".join(f"{split} {f} + {r}" for split, (f, r) in report.data.counts.items())
    # Text, because rich would read brackets in a name as markup.
    return Text(
        f"Audit of {methods}: {names} forgotten, {report.data.name}; images forgotten + retained: {counts}.\n"
        f"Read against: {', '.join(references) or 'no retrained model, so there are no verdicts'}."
    )


def _table(title: str, *columns: str) -> Table:
    """Return an empty table. Columns of numbers are aligned at the right."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in _WORDS else "right", no_wrap=True)
    return table


def _lines_table(lines: list[Line], title: str) -> Table:
    table = _table(title, "metric", "unlearned", "debiased", "original", "retrained", "n", "verdict")
    for _, of_family in groupby(lines, key=lambda line: metric_of(line.name).family):
        table.add_section()
        for line in of_family:
            table.add_row(
                Text(title_of(line.name)),
                _cell(line.unlearned),
                _number(line.unlearned.debiased),
                _number(None if line.original is None else line.original.value),
                _cell(line.retrained),
                "" if line.unlearned.n is None else f"{line.unlearned.n:,}",
                f"[{_STYLES[line.verdict]}]{line.verdict}[/]",
            )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _cell(reading: Reading | None) -> str:
    if reading is None:
        return ""
    no_interval = reading.low is None or reading.high is None
    return _number(reading.value) + ("" if no_interval else f" ({reading.low:.3f} to {reading.high:.3f})")


def _discrepancy_table(report: AuditReport) -> Table:
    title = "distance to the retrained model and its terms (Definition 2.1)"
    terms = ("separation", "forgotten", "retained", "original's", "floor")
    table = _table(title, "metric", "features", "total", "bounds", *terms, "")
    for entry in report.discrepancies:
        bounds = "" if entry.lower is None else f"{_number(entry.lower)} to {_number(entry.upper)}"
        values = (entry.separation, entry.forgotten, entry.retained, entry.original, entry.floor)
        limit = "" if entry.epsilon is None else f", epsilon {entry.epsilon:.3f}"
        decision = f"{entry.decision}{limit}"
        table.add_row(entry.metric, entry.view, _number(entry.total), bounds, *map(_number, values), decision)
    return table


def _relearning_table(report: AuditReport) -> Table:
    first = report.relearning[0]
    each = first.images_per_class
    title = f"accuracy on the forgotten classes after steps of relearning from {each} images per class"
    table = _table(title, "model", *map(str, first.steps))
    for curve in report.relearning:
        table.add_row(curve.role, *(_number(point.value) for point in curve.forget))
    return table
