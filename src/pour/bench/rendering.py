"""Table as rich text, markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from rich.console import Console
from rich.console import Group as Stacked
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from pour.bench.columns import latex_text
from pour.bench.store import check_unmixed, read_store
from pour.bench.table import GROUPS
from pour.errors import UsageError
from pour.report.figures.changes import changes_data, draw_changes
from pour.report.figures.saving import save_figure
from pour.report.figures.style import Theme

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.figure import Figure
    from rich.console import RenderableType

    from pour.bench.columns import Column
    from pour.bench.store import Cell
    from pour.bench.table import Entry, Group, ResultTable, TableRow

__all__ = ["Format", "draw_bars", "render", "rich_table", "save_bars", "show_table"]

Format = Literal["rich", "markdown", "latex", "csv"]

_EMPTY = "–"  # noqa: RUF001 - the dash of printed tables
_ARROWS = {"above": "▲", "below": "▼"}
_LATEX_ARROWS = {"above": "$^\\blacktriangle$", "below": "$^\\blacktriangledown$"}
_DIRECTION = {"higher": " ↑", "lower": " ↓"}
_LATEX_DIRECTION = {"higher": " $\\uparrow$", "lower": " $\\downarrow$"}


def render(table: ResultTable, format: Format) -> str:
    """Return the text of a table.

    Args:
        table: Table of :func:`make_table`.
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
    """Print a table. If the terminal is too narrow, lines run on, and no number is cut."""
    console = console or Console()
    drawn = rich_table(table)
    console.width = max(console.width, Measurement.get(console, console.options.update(width=10_000), drawn).maximum)
    console.print(drawn, soft_wrap=False)


def rich_table(table: ResultTable) -> RenderableType:
    """Return a table for a terminal: best values bold, second best underlined, values of others dim, notes below."""
    drawn = Table(title=Text(table.title), title_justify="left", pad_edge=False)
    drawn.add_column(table.heads[0], no_wrap=True)
    drawn.add_column(table.heads[1])
    for column in table.columns:
        drawn.add_column(Text(f"{column.label}{_DIRECTION.get(column.better, '')}"), justify="right")
    for group, rows in _by_group(table):
        drawn.add_section()
        if GROUPS[group]:
            drawn.add_row(Text(GROUPS[group], style="italic"))
        previous = ""
        for row in rows:
            if not group and previous not in ("", row.label):
                drawn.add_section()
            # A class stands in the first of its lines.
            label, previous = "" if not group and row.label == previous else row.label, row.label
            cells = [_styled(row.entries.get(column.key), column) for column in table.columns]
            drawn.add_row(
                Text(label), Text(row.setting), *cells, style="dim" if row.published or row.elsewhere else None
            )
    return Stacked(drawn, *(Text(note) for note in table.notes))


def _by_group(table: ResultTable) -> Iterator[tuple[Group, list[TableRow]]]:
    for group, rows in groupby(table.rows, key=lambda row: row.group):
        yield group, list(rows)


def _number(entry: Entry, column: Column) -> str:
    sign = "+" if column.change else ""
    value = f"{entry.mean:{sign}.2f}"
    # A loss below half of the last digit is shown as none.
    return value.replace("-0.00", "0.00") if value == "-0.00" else value


def _plain(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return _EMPTY
    deviation = "" if entry.std is None else f"±{entry.std:.2f}"
    deviation += "" if entry.change is None else f" ({entry.change:+.2f})"
    arrow = "" if entry.difference is None else f" {_ARROWS[entry.difference]}"
    return f"{_number(entry, column)}{deviation}{arrow}"


def _styled(entry: Entry | None, column: Column) -> Text:
    style = {"best": "bold", "second": "underline", None: ""}[None if entry is None else entry.mark]
    return Text(_plain(entry, column), style=style)


def _markdown(table: ResultTable) -> str:
    head = [*table.heads, *(f"{column.label}{_DIRECTION.get(column.better, '')}" for column in table.columns)]
    lines = [f"**{table.title}**", "", _line(head), _line(["---", "---", *["---:"] * len(table.columns)])]
    for group, rows in _by_group(table):
        if GROUPS[group]:
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
        *(f"{column.latex}{_LATEX_DIRECTION.get(column.better, '')}" for column in table.columns),
    ]
    lines = [
        f"% {' '.join(table.title.split())}",
        f"\\begin{{tabular}}{{ll{'r' * len(table.columns)}}}",
        "\\toprule",
        f"{' & '.join(head)} \\\\",
    ]
    for group, rows in _by_group(table):
        if GROUPS[group]:
            lines += ["\\midrule", f"\\multicolumn{{{width}}}{{c}}{{\\textit{{{GROUPS[group]}}}}} \\\\"]
        lines.append("\\midrule")
        for row in rows:
            values = [_latex_entry(row.entries.get(column.key), column) for column in table.columns]
            names = [latex_text(row.label), latex_text(row.setting)]
            lines.append(f"{' & '.join([*names, *values])} \\\\")
    lines += ["\\bottomrule", "\\end{tabular}", *(f"% {' '.join(note.split())}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _latex_entry(entry: Entry | None, column: Column) -> str:
    if entry is None:
        return "--"
    deviation = "" if entry.std is None else f"{{\\tiny $\\pm${entry.std:.2f}}}"
    deviation += "" if entry.change is None else f" ({entry.change:+.2f})"
    value = f"{_number(entry, column)}{deviation}"
    if entry.mark is not None:
        value = f"\\textbf{{{value}}}" if entry.mark == "best" else f"\\underline{{{value}}}"
    return value + ("" if entry.difference is None else _LATEX_ARROWS[entry.difference])


def _csv(table: ResultTable) -> str:
    """Return unrounded numbers: mean, deviation, number of seeds and mark of every column."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    changes = any(entry.change is not None for row in table.rows for entry in row.entries.values())
    measures = ("mean", "std", "n", "difference", *(["change"] if changes else []))
    names = [f"{column.key}_{measure}" for column in table.columns for measure in measures]
    writer.writerow(["row", "method", "setting", "group", "source", *names])
    for row in table.rows:
        values: list[object] = []
        for column in table.columns:
            entry = row.entries.get(column.key)
            values += [None if entry is None else getattr(entry, measure) for measure in measures]
        source = "paper" if row.published else "encoder" if row.encoder else "measured"
        source = f"{source}, {row.setting}" if row.elsewhere else source
        writer.writerow([row.name, row.label, row.setting, row.group, source, *values])
    return stream.getvalue()


def draw_bars(results: str | Path, *, row: str = "specific", seed: int = 0, theme: Theme = "light") -> Figure:
    """Draw the change of each class's accuracy, one line per concept that was forgotten alone.

    Args:
        results: Folder or file of results with the accuracy of each class, as those of zero-shot classifiers.
        row: Name of the row.
        seed: Seed of the training.
        theme: light or dark.
    """
    cells = [cell for cell in _cells_with_classes(results) if (cell.key.row, cell.key.seed) == (row, seed)]
    if not cells:
        raise UsageError(f"{results} has no results of the row {row!r} and seed {seed} with an accuracy per class.")
    check_unmixed(cells)
    data = changes_data(
        [cells[0].values[f"acc.{name}"].n or 0 for name in _class_names(cells[0])],
        _right(cells[0], "_before"),
        {cell.forgotten_names[0]: _right(cell, "") for cell in cells},
        classes=_class_names(cells[0]),
        forgotten={cell.forgotten_names[0]: cell.key.forget for cell in cells},
    )
    return draw_changes(data, theme=theme)


def save_bars(out: str | Path) -> list[Path]:
    """Write the bars of every row to ``figures/`` in a folder of results, light and dark.

    Results without the accuracy of each class have no bars.
    """
    seeds: dict[str, int] = {}
    for cell in _cells_with_classes(out):
        seeds[cell.key.row] = min(cell.key.seed, seeds.get(cell.key.row, cell.key.seed))
    return [
        save_figure(
            draw_bars(out, row=row, seed=seed, theme=theme), Path(out) / "figures" / f"changes-{row}-{theme}.svg"
        )
        for row, seed in seeds.items()
        for theme in get_args(Theme)
    ]


def _cells_with_classes(results: str | Path) -> list[Cell]:
    """Return the cells that forgot one class and have the accuracy of each class."""
    cells = [cell for cell in read_store(results) if len(cell.key.forget) == 1 and _class_names(cell)]
    return sorted(cells, key=lambda cell: cell.key.forget)


def _class_names(cell: Cell) -> list[str]:
    names = [name.removeprefix("acc.") for name in cell.values if name.startswith("acc.")]
    return [name for name in names if f"acc.{name}_before" in cell.values]


def _right(cell: Cell, suffix: str) -> list[int]:
    """Return the number of right answers for each class."""
    readings = [cell.values[f"acc.{name}{suffix}"] for name in _class_names(cell)]
    return [round(reading.value * (reading.n or 0)) for reading in readings]
