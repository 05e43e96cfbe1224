"""Print tables and text in the terminal without cutting a value, from a width of 60 columns on."""

from __future__ import annotations

import io
import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from rich.console import ConsoleOptions, RenderableType

__all__ = ["TerminalTable", "as_text", "open_console"]

_PIPE_WIDTH = 160
# Least width of a column of sentences. A narrower column would be hard to read.
_NARROWEST_PROSE = 30
_SEPARATOR = " · "
# Largest number of tables of the same rows. If more are needed, blocks of lines are easier to read.
_MOST_PARTS = 4
# Spaces and border of a column.
_FRAME = 3


@dataclass
class _Row:
    cells: tuple[Text, ...]
    style: str
    starts_section: bool
    is_heading: bool = False


@dataclass
class TerminalTable:
    """A table in columns if they fit into the terminal; otherwise several tables, or one block of lines per row.

    No value is cut. Brackets in a text have no meaning for rich.

    Examples:
        >>> table = TerminalTable(["metric", "value"], right=["value"])
        >>> table.add_row("accuracy [%]", "97.5")
        >>> "accuracy [%] │  97.5" in as_text(table)
        True
    """

    columns: list[str]
    title: str = ""
    right: Collection[str] = ()
    """Columns that are aligned at the right."""
    prose: Collection[str] = ()
    """Columns of sentences and lists, which continue on the next line."""
    keys: int = 0
    """Number of columns that begin each of several tables if the columns do not fit side by side; 0 for blocks."""
    _rows: list[_Row] = field(default_factory=list)
    _starts_section: bool = False

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Append a row with one cell per column."""
        self._append(tuple(Text(cell) if isinstance(cell, str) else cell for cell in cells), style)

    def add_heading(self, text: str) -> None:
        """Append a line above the rows of a group."""
        self._append((Text(text, style="italic"),), "", is_heading=True)

    def add_section(self) -> None:
        """Draw a line before the next row."""
        self._starts_section = True

    def _append(self, cells: tuple[Text, ...], style: str, *, is_heading: bool = False) -> None:
        self._rows.append(_Row(cells, style, self._starts_section, is_heading))
        self._starts_section = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield Text(self.title, style="italic")
        widths = [self._width(index) for index in range(len(self.columns))]
        parts: list[list[int]] = [[]]
        for index, width in enumerate(widths):
            used = sum(_FRAME + widths[column] for column in parts[-1])
            if used + _FRAME + width + 1 > options.max_width and parts[-1]:
                parts.append([*range(self.keys)])
            parts[-1].append(index)
        widest = max(1 + sum(_FRAME + widths[column] for column in part) for part in parts)
        if widest <= options.max_width and len(parts) <= (_MOST_PARTS if self.keys else 1):
            yield from (self._drawn(part, widths) for part in parts)
        else:
            yield from self._blocks(options.max_width)

    def _width(self, index: int) -> int:
        """Return the smallest width of a column that cuts no value and leaves prose readable."""
        name = self.columns[index]
        cells = [row.cells[index] for row in self._rows if not row.is_heading]
        width = max([cell.cell_len for cell in cells], default=0)
        if name in self.prose:
            words = [len(word) for cell in cells for word in cell.plain.split()]
            width = max([min(width, _NARROWEST_PROSE), *words])
        return max(width, len(name))

    def _drawn(self, columns: Sequence[int], widths: Sequence[int]) -> Table:
        """Return a table with some of the columns."""
        drawn = Table()
        for index in columns:
            name = self.columns[index]
            drawn.add_column(
                Text(name),
                min_width=widths[index],
                justify="right" if name in self.right else "left",
                no_wrap=name not in self.prose,
            )
        for row in self._rows:
            if row.starts_section:
                drawn.add_section()
            cells = row.cells if row.is_heading else [row.cells[index] for index in columns]
            drawn.add_row(*cells, style=row.style or None)
        return drawn

    def _blocks(self, width: int) -> Iterator[RenderableType]:
        """Yield the first cell of each row, and below it the other cells with the names of their columns."""
        for index, row in enumerate(self._rows):
            if index and (row.starts_section or row.is_heading):
                yield Text("")
            # An empty first cell repeats the first cell of the row above.
            if row.cells[0]:
                yield Text.assemble(row.cells[0], style=row.style or ("" if row.is_heading else "bold"))
            line = Text(style=row.style)
            for name, cell in zip(self.columns[1:], row.cells[1:], strict=False):
                if not cell.plain:
                    continue
                pair = Text.assemble(f"{name}: " if name else "", cell)
                if line and line.cell_len + len(_SEPARATOR) + pair.cell_len > width - 2:
                    yield Padding(line, (0, 0, 0, 2), expand=False)
                    line = Text(style=row.style)
                line.append_text(Text(_SEPARATOR if line else ""))
                line.append_text(pair)
            if line:
                yield Padding(line, (0, 0, 0, 2), expand=False)


def open_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console for standard output, or for standard error.

    `COLUMNS` sets the width. Without it a pipe is 160 columns wide. `NO_COLOR` leaves out all styles, also bold.
    """
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        stderr=stderr,
        quiet=quiet,
        width=None if stream.isatty() or os.environ.get("COLUMNS") else _PIPE_WIDTH,
        color_system=None if os.environ.get("NO_COLOR") else "auto",
    )


def as_text(content: RenderableType, width: int | None = None) -> str:
    """Return tables as text without styles, by default as wide as the terminal."""
    columns = width or shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns
    # In a notebook, rich would display the text as well.
    console = Console(file=io.StringIO(), width=columns, color_system=None, force_jupyter=False)
    with console.capture() as captured:
        console.print(content)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
