"""A table as rich text, markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from typing import TYPE_CHECKING, Literal, get_args

from rich.console import Console
from rich.console import Group as Stacked
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pour.bench.table import GROUPS
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from pour.bench.columns import Column
    from pour.bench.table import Entry, Group, ResultTable, TableRow

__all__ = ["Format", "latex_text", "render", "rich_table", "show_table"]

Format = Literal["rich", "markdown", "latex", "csv"]

_EMPTY = "–"  # noqa: RUF001 - the dash of printed tables
_ARROWS = {"above": "▲", "below": "▼"}
_LATEX_ARROWS = {"above": "$^\\blacktriangle$", "below": "$^\\blacktriangledown$"}
_DIRECTION = {"higher": "↑", "lower": "↓"}
_LATEX_DIRECTION = {"higher": "$\\uparrow$", "lower": "$\\downarrow$"}
_LATEX_SPECIAL = str.maketrans(
    {char: f"\\{char}" for char in "_%&#${}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


def render(table: ResultTable, format: Format) -> str:
    """The text of a table in a format.

    Args:
        table: from :func:`make_table`.
        format: markdown, latex, csv, or rich for a drawing as wide as it needs.
    """
    if format == "markdown":
        return _markdown(table)
    if format == "latex":
        return _latex(table)
    if format == "csv":
        return _csv(table)
    if format == "rich":
        stream = io.StringIO()
        show_table(table, Console(file=stream, force_terminal=False))
        return stream.getvalue()
    raise UsageError(f"The format must be one of {', '.join(get_args(Format))}, but is {format!r}.")


def show_table(table: ResultTable, console: Console | None = None) -> None:
    """Print a table in full: on a terminal or pipe that is too narrow its lines run on, and no number is cut."""
    console = console or Console()
    drawn = rich_table(table)
    console.width = max(console.width, Measurement.get(console, console.options.update(width=10_000), drawn).maximum)
    console.print(drawn, soft_wrap=False)


def rich_table(table: ResultTable) -> RenderableType:
    """The table for a terminal, its notes below; best bold, second best underlined, the paper's values dim."""
    drawn = Table(title=Text(table.title), title_justify="left", pad_edge=False)
    drawn.add_column(table.heads[0], no_wrap=True)
    drawn.add_column(table.heads[1])
    for column in table.columns:
        drawn.add_column(Text(f"{column.label} {_DIRECTION[column.better]}"), justify="right")
    for group, rows in _by_group(table):
        drawn.add_section()
        drawn.add_row(Text(GROUPS[group], style="italic"))
        for row in rows:
            cells = [_styled(row.entries.get(column.key), column) for column in table.columns]
            drawn.add_row(
                Text(row.label), Text(row.setting), *cells, style="dim" if row.published or row.elsewhere else None
            )
    return Stacked(drawn, *(Text(note) for note in table.notes))


def _by_group(table: ResultTable) -> Iterator[tuple[Group, list[TableRow]]]:
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        yield group, list(rows)


def _number(entry: Entry, column: Column) -> str:
    sign = "+" if column.change else ""
    value = f"{entry.mean:{sign}.2f}"
    # A loss of less than half a digit is no loss.
    return value.replace("-0.00", "0.00") if value == "-0.00" else value


def _plain(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return _EMPTY
    deviation = "" if entry.std is None else f"±{entry.std:.2f}"
    arrow = "" if entry.difference is None else f" {_ARROWS[entry.difference]}"
    return f"{_number(entry, column)}{deviation}{arrow}"


def _styled(entry: Entry | None, column: Column) -> Text:
    style = {"best": "bold", "second": "underline", None: ""}[None if entry is None else entry.mark]
    return Text(_plain(entry, column), style=style)


def _markdown(table: ResultTable) -> str:
    head = [*table.heads, *(f"{column.label} {_DIRECTION[column.better]}" for column in table.columns)]
    lines = [f"**{table.title}**", "", _line(head), _line(["---", "---", *["---:"] * len(table.columns)])]
    for group, rows in _by_group(table):
        lines.append(_line([f"*{GROUPS[group]}*", *[""] * (len(head) - 1)]))
        for row in rows:
            values = []
            for column in table.columns:
                entry = row.entries.get(column.key)
                before, after = {"best": ("**", "**"), "second": ("<u>", "</u>"), None: ("", "")}[
                    None if entry is None else entry.mark
                ]
                values.append(f"{before}{_plain(entry, column)}{after}")
            lines.append(_line([row.label, row.setting, *values]))
    return "\n".join([*lines, "", *(f"{note}  " for note in table.notes)]).rstrip() + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _latex(table: ResultTable) -> str:
    width = len(table.columns) + 2
    head = [
        *(head.capitalize() for head in table.heads),
        *(f"{column.latex} {_LATEX_DIRECTION[column.better]}" for column in table.columns),
    ]
    lines = [
        f"% {' '.join(table.title.split())}",
        f"\\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        "\\toprule",
        f"{' & '.join(head)} \\\\",
    ]
    for group, rows in _by_group(table):
        lines += ["\\midrule", f"\\multicolumn{{{width}}}{{c}}{{\\textit{{{GROUPS[group]}}}}} \\\\", "\\midrule"]
        for row in rows:
            values = [_latex_entry(row.entries.get(column.key), column) for column in table.columns]
            names = [latex_text(row.label), latex_text(row.setting)]
            lines.append(f"{' & '.join([*names, *values])} \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {' '.join(note.split())}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def latex_text(text: str) -> str:
    r"""A name as LaTeX prints it.

    Example:
        >>> print(latex_text("50 % of a_b~{c}"))
        50 \% of a\_b\textasciitilde{}\{c\}
    """
    return " ".join(text.translate(_LATEX_SPECIAL).split())


def _latex_entry(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return "--"
    deviation = "" if entry.std is None else f"{{\\tiny $\\pm${entry.std:.2f}}}"
    value = f"{_number(entry, column)}{deviation}"
    if entry.mark is not None:
        value = f"\\textbf{{{value}}}" if entry.mark == "best" else f"\\underline{{{value}}}"
    return value + ("" if entry.difference is None else _LATEX_ARROWS[entry.difference])


def _csv(table: ResultTable) -> str:
    """Unrounded numbers: mean, deviation and seeds of every column; what is not there is empty."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    measures = ("mean", "std", "n", "difference")
    names = [f"{column.key}_{measure}" for column in table.columns for measure in measures]
    writer.writerow(["row", "method", "setting", "group", "source", *names])
    for row in table.rows:
        values: list[object] = []
        for column in table.columns:
            entry = row.entries.get(column.key)
            values += [""] * 4 if entry is None else [entry.mean, entry.std, entry.n, entry.difference]
        source = "paper" if row.published else "encoder" if row.encoder else "measured"
        source = f"{source}, {row.setting}" if row.elsewhere else source
        writer.writerow([row.name, row.label, row.setting, row.group, source, *values])
    return stream.getvalue()
