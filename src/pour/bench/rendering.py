"""Table as rich text, markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar, get_args

from rich.console import Group as Stacked
from rich.text import Text

from pour._terminal import TerminalTable, as_text, open_console
from pour.bench.columns import latex_text
from pour.bench.store import check_unmixed, read_store
from pour.bench.table import GROUPS
from pour.errors import UsageError
from pour.report.figures.changes import ChangesData, changes_data, draw_changes
from pour.report.figures.saving import save_figure
from pour.report.figures.style import Theme

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console, RenderableType

    from pour.bench.columns import Column
    from pour.bench.published import Entry
    from pour.bench.store import Cell
    from pour.bench.table import ResultTable, TableRow

__all__ = ["Format", "render", "rich_table", "save_bars", "show_table"]

Format = Literal["rich", "markdown", "latex", "csv"]
T = TypeVar("T")

_AS_WIDE_AS_NEEDED = 10_000
_EMPTY = "–"  # noqa: RUF001 - the dash of printed tables
_ARROWS = {"above": "▲", "below": "▼"}
_LATEX_ARROWS = {"above": "$^\\blacktriangle$", "below": "$^\\blacktriangledown$"}
_STYLES = {"best": "bold", "second": "underline", "": ""}
_MARKDOWN_MARKS = {"best": ("**", "**"), "second": ("<u>", "</u>"), "": ("", "")}
_LATEX_MARKS = {"best": ("\\textbf{", "}"), "second": ("\\underline{", "}"), "": ("", "")}
_DIRECTION = {"higher": " ↑", "lower": " ↓"}
_LATEX_DIRECTION = {"higher": " $\\uparrow$", "lower": " $\\downarrow$"}


def render(table: ResultTable, format: Format) -> str:
    """Return the text of a table.

    Args:
        table: Table of `make_table`.
        format: markdown, latex, csv, or rich for a drawing as wide as it needs.
    """
    writers = {"rich": _drawn, "markdown": _markdown, "latex": _latex, "csv": _csv}
    if format not in writers:
        raise UsageError(f"The format must be one of {', '.join(writers)}, but is {format!r}.")
    return writers[format](table)


def _drawn(table: ResultTable) -> str:
    return as_text(rich_table(table), _AS_WIDE_AS_NEEDED) + "\n"


def show_table(table: ResultTable, console: Console | None = None) -> None:
    """Print a table, with one block per row if the terminal is too narrow for its columns."""
    (console or open_console()).print(rich_table(table))


def rich_table(table: ResultTable) -> RenderableType:
    """Return a table for a terminal: best values bold, second best underlined, values of others dim, notes below."""
    numbers = [f"{column.label}{_DIRECTION.get(column.better, '')}" for column in table.columns]
    drawn = TerminalTable([*table.heads, *numbers], table.title, right=numbers, prose=[table.heads[0]], keys=2)
    label = ""
    for is_first, row, cells in _rows(table, _styled):
        is_repeated = not row.group and row.label == label
        if is_first or not (row.group or is_repeated):
            drawn.add_section()
        if is_first and row.group:
            drawn.add_heading(GROUPS[row.group])
        style = "dim" if row.published or row.elsewhere else ""
        drawn.add_row("" if is_repeated else row.label, row.setting, *cells, style=style)
        label = row.label
    return Stacked(drawn, *(Text(note) for note in table.notes))


def _rows(table: ResultTable, show: Callable[[Entry | None, Column], T]) -> Iterator[tuple[bool, TableRow, list[T]]]:
    """Yield for each row whether it begins a group, the row, and its entries as `show` returns them."""
    group = None
    for row in table.rows:
        yield row.group != group, row, [show(row.entries.get(column.key), column) for column in table.columns]
        group = row.group


def _number(entry: Entry, column: Column) -> str:
    text = f"{entry.mean:{'+' if column.change else ''}.2f}"
    # A loss below half of the last digit is shown as 0.
    return "0.00" if text == "-0.00" else text


def _mark(entry: Entry | None) -> str:
    return "" if entry is None or entry.mark is None else entry.mark


def _change(entry: Entry) -> str:
    return "" if entry.change is None else f" ({entry.change:+.2f})"


def _plain(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return _EMPTY
    deviation = "" if entry.std is None else f"±{entry.std:.2f}"
    arrow = "" if entry.difference is None else f" {_ARROWS[entry.difference]}"
    return f"{_number(entry, column)}{deviation}{_change(entry)}{arrow}"


def _styled(entry: Entry | None, column: Column) -> Text:
    return Text(_plain(entry, column), style=_STYLES[_mark(entry)])


def _markdown(table: ResultTable) -> str:
    head = [*table.heads, *(f"{column.label}{_DIRECTION.get(column.better, '')}" for column in table.columns)]
    lines = [f"**{table.title}**", "", _line(head), _line(["---", "---", *["---:"] * len(table.columns)])]
    for is_first, row, cells in _rows(table, _marked):
        if is_first and row.group:
            lines.append(_line([f"*{GROUPS[row.group]}*", *[""] * (len(head) - 1)]))
        lines.append(_line([row.label, row.setting, *cells]))
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes)]).rstrip() + "\n"


def _marked(entry: Entry | None, column: Column) -> str:
    before, after = _MARKDOWN_MARKS[_mark(entry)]
    return f"{before}{_plain(entry, column)}{after}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _latex(table: ResultTable) -> str:
    head = [head.capitalize() for head in table.heads]
    head += [f"{column.latex}{_LATEX_DIRECTION.get(column.better, '')}" for column in table.columns]
    columns = "ll" + "r" * len(table.columns)
    lines = [f"% {' '.join(table.title.split())}", f"\\begin{{tabular}}{{{columns}}}", "\\toprule"]
    lines.append(f"{' & '.join(head)} \\\\")
    for is_first, row, cells in _rows(table, _latex_entry):
        if is_first and row.group:
            lines += ["\\midrule", f"\\multicolumn{{{len(head)}}}{{c}}{{\\textit{{{GROUPS[row.group]}}}}} \\\\"]
        lines += ["\\midrule"] if is_first else []
        lines.append(f"{' & '.join([latex_text(row.label), latex_text(row.setting), *cells])} \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {' '.join(note.split())}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _latex_entry(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return "--"
    deviation = "" if entry.std is None else f"{{\\tiny $\\pm${entry.std:.2f}}}"
    before, after = _LATEX_MARKS[_mark(entry)]
    arrow = "" if entry.difference is None else _LATEX_ARROWS[entry.difference]
    return f"{before}{_number(entry, column)}{deviation}{_change(entry)}{after}{arrow}"


def _csv(table: ResultTable) -> str:
    """Return unrounded numbers: mean, deviation, number of seeds and mark of every column."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    changes = any(entry.change is not None for row in table.rows for entry in row.entries.values())
    measures = ("mean", "std", "n", "difference", *(["change"] if changes else []))
    names = [f"{column.key}_{measure}" for column in table.columns for measure in measures]
    writer.writerow(["row", "method", "setting", "group", "source", *names])
    for _, row, entries in _rows(table, lambda entry, column: entry):
        values = [None if entry is None else getattr(entry, measure) for entry in entries for measure in measures]
        source = "paper" if row.published else "encoder" if row.encoder else "measured"
        source = f"{source}, {row.setting}" if row.elsewhere else source
        writer.writerow([row.name, row.label, row.setting, row.group, source, *values])
    return stream.getvalue()


def save_bars(results: str | Path) -> list[Path]:
    """Write the change of each class's accuracy to `figures/` in a folder of results, light and dark for every row.

    A figure has the row's first seed, and one line per class that was forgotten alone. Results without the accuracy of
    each class have no bars.
    """
    rows: dict[str, list[Cell]] = {}
    for cell in sorted(read_store(results), key=lambda cell: (cell.key.seed, cell.key.forget)):
        if len(cell.key.forget) == 1 and _class_names(cell):
            rows.setdefault(cell.key.row, []).append(cell)
    bars = {row: _bars([cell for cell in cells if cell.key.seed == cells[0].key.seed]) for row, cells in rows.items()}
    return [
        save_figure(draw_changes(data, theme=theme), Path(results) / "figures" / f"changes-{row}-{theme}.svg")
        for row, data in bars.items()
        for theme in get_args(Theme)
    ]


def _bars(cells: list[Cell]) -> ChangesData:
    """Return the changes by the cells of one row and seed."""
    check_unmixed(cells)
    return changes_data(
        [cells[0].values[f"acc.{name}"].n or 0 for name in _class_names(cells[0])],
        _right(cells[0], "_before"),
        {cell.forgotten_names[0]: _right(cell, "") for cell in cells},
        classes=_class_names(cells[0]),
        forgotten={cell.forgotten_names[0]: cell.key.forget for cell in cells},
    )


def _class_names(cell: Cell) -> list[str]:
    names = [name.removeprefix("acc.") for name in cell.values if name.startswith("acc.")]
    return [name for name in names if f"acc.{name}_before" in cell.values]


def _right(cell: Cell, suffix: str) -> list[int]:
    """Return the number of right answers for each class."""
    readings = [cell.values[f"acc.{name}{suffix}"] for name in _class_names(cell)]
    return [round(reading.value * (reading.n or 0)) for reading in readings]
