"""Format reports as tables for the terminal."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from pour._terminal import TerminalTable
from pour.metrics.catalogue import metric_of, title_of

if TYPE_CHECKING:
    from rich.console import RenderableType

    from pour.auditing.measurement import Reading
    from pour.auditing.report import AuditReport, Comparison, Line
    from pour.auditing.verdict import Verdict

__all__ = ["comparison_table", "report_tables", "summary_text"]

_STYLES: dict[Verdict, str] = {
    "within its interval": "green",
    "better": "green",
    "leaks more": "red",
    "destroyed": "magenta",
    "as the original": "yellow",
    "no reference": "dim",
}
_WORDS = frozenset({"metric", "features", "verdict", "first's verdict", "second's verdict", "model", "decision"})
_TITLES = {
    "scores": "answers of the model",
    "features": "input features of the head",
    "raw": "raw features of the encoder, before the projector",
}


def report_tables(report: AuditReport) -> RenderableType:
    """Return all tables of a report with its notes and statements.

    If no value has a reference, the heading reports it once, and the tables have no column of verdicts.
    """
    parts: list[RenderableType] = [_heading(report)]
    for section, title in _TITLES.items():
        lines = [line for line in report.lines if line.section == section]
        if lines:
            parts += ["", _lines_table(lines, title, verdicts=_has_verdicts(report))]
    if report.discrepancies:
        parts += ["", _discrepancy_table(report)]
    if report.relearning:
        parts += ["", _relearning_table(report)]
    parts += [Text(f"note: {note}") for note in report.notes]
    parts += ["", summary_text(report)]
    return Group(*parts)


def summary_text(report: AuditReport) -> RenderableType:
    """Return the three statements of the report."""
    return Text("\n".join(report.summary))


def comparison_table(comparison: Comparison) -> RenderableType:
    """Return the differences of two reports as a table."""
    table = _table("", "metric", "first", "second", "change", "first's verdict", "second's verdict")
    for row in comparison.rows:
        change = f"{row.change:+.4f}" + (" *" if row.clear else "")
        verdicts = [Text(verdict, style=_STYLES[verdict]) for verdict in row.verdicts]
        table.add_row(row.name, f"{row.first.value:.4f}", f"{row.second.value:.4f}", change, *verdicts)
    parts: list[RenderableType] = [table, "* each value is outside the other's 95 % interval"]
    for name, missing in (("first", comparison.only_first), ("second", comparison.only_second)):
        if missing:
            parts.append(Text(f"only in the {name}: {', '.join(missing)}"))
    if not comparison.same_data:
        parts.append("note: the reports are of different data; their numbers cannot be compared.")
    return Group(*parts)


def _heading(report: AuditReport) -> Text:
    names = ", ".join(report.data.forgotten_names)
    methods = ", ".join(report.models["unlearned"].methods) or "no recorded method"
    references = [role.replace("_", " ") for role in report.models if role.startswith("retrained")]
    counts = ", ".join(f"{split} {f} + {r}" for split, (f, r) in report.data.counts.items())
    # Text, because rich would read brackets in a name as markup.
    return Text(
        f"Audit of {methods}: {names} forgotten, {report.data.name}; images forgotten + retained: {counts}.\n"
        f"Compared with: {', '.join(references) or 'no retrained model'}."
        + ("" if _has_verdicts(report) else " Verdict of every measure: no reference.")
    )


def _has_verdicts(report: AuditReport) -> bool:
    return any(line.verdict != "no reference" for line in report.lines)


def _table(title: str, *columns: str) -> TerminalTable:
    """Return an empty table. Columns of numbers are aligned at the right."""
    keys = 1 if columns[0] == "model" else 0
    return TerminalTable([*columns], title, right={*columns} - _WORDS, prose=["metric"], keys=keys)


def _lines_table(lines: list[Line], title: str, *, verdicts: bool) -> TerminalTable:
    columns = ["metric", "unlearned", "debiased", "original", "retrained", "n", *(["verdict"] if verdicts else [])]
    table = _table(title, *columns)
    for _, of_family in groupby(lines, key=lambda line: metric_of(line.name).family):
        table.add_section()
        for line in of_family:
            table.add_row(
                title_of(line.name),
                _cell(line.unlearned),
                _number(line.unlearned.debiased),
                _number(None if line.original is None else line.original.value),
                _cell(line.retrained),
                "" if line.unlearned.n is None else f"{line.unlearned.n:,}",
                *([Text(line.verdict, style=_STYLES[line.verdict])] if verdicts else []),
            )
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _cell(reading: Reading | None) -> str:
    if reading is None:
        return ""
    no_interval = reading.low is None or reading.high is None
    return _number(reading.value) + ("" if no_interval else f" ({reading.low:.3f} to {reading.high:.3f})")


def _discrepancy_table(report: AuditReport) -> TerminalTable:
    title = "distance to the retrained model and its terms (Definition 2.1)"
    terms = ("separation", "forgotten", "retained", "original's", "floor")
    table = _table(title, "metric", "features", "total", "bounds", *terms, "decision")
    for entry in report.discrepancies:
        bounds = "" if entry.lower is None else f"{_number(entry.lower)} to {_number(entry.upper)}"
        values = (entry.separation, entry.forgotten, entry.retained, entry.original, entry.floor)
        limit = "" if entry.epsilon is None else f", epsilon {entry.epsilon:.3f}"
        decision = f"{entry.decision}{limit}"
        table.add_row(entry.metric, entry.view, _number(entry.total), bounds, *map(_number, values), decision)
    return table


def _relearning_table(report: AuditReport) -> TerminalTable:
    first = report.relearning[0]
    each = first.images_per_class
    title = f"accuracy on the forgotten classes after steps of relearning from {each} images per class"
    table = _table(title, "model", *map(str, first.steps))
    for curve in report.relearning:
        table.add_row(curve.role, *(_number(point.value) for point in curve.forget))
    return table
