"""The classes of a store side by side: whether what a method does to one class holds for others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pour.bench.rendering import latex_text
from pour.bench.store import load_store
from pour.bench.table import GROUPS, ResultTable, comparable_cells, forgotten_name, make_table, requests_in
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.bench.columns import Column
    from pour.bench.store import Cell
    from pour.bench.table import TableRow

__all__ = ["CLASS_COLUMNS", "make_class_table"]

CLASS_COLUMNS = ("acc_r_change", "acc_f", "aus", "rus_r")
"""What is shown of each class, unless others are asked for."""


def make_class_table(out: str | Path, *, columns: Sequence[str] | None = None) -> ResultTable:
    """Read a store into one table that has the columns of every request, one request after the other.

    Best and second best are marked within each request. The paper prints one class, so nothing stands beside it here.

    Args:
        out: the store.
        columns: keys of :data:`pour.bench.columns.COLUMNS`; by default :data:`CLASS_COLUMNS`.
    """
    folder = Path(out)
    experiment = load_store(folder).experiment
    cells = comparable_cells(folder)
    names = {cell.key.forget: forgotten_name(cell) for cell in cells}
    requests = requests_in(cells, experiment)
    if len(requests) == 1:
        raise UsageError(f"{folder} has results of forgetting {names[requests[0]]} alone; there is nothing beside it.")
    shown = columns or CLASS_COLUMNS
    tables = {names[request]: make_table(folder, forget=request, columns=shown) for request in requests}
    order = [row.name for row in (experiment.rows if experiment else ())]
    seeds = {names[request]: _seeds(cells, request) for request in requests}
    # Where they differ, so do the networks.
    alike = len(set(seeds.values())) == 1
    listed = "; ".join(tables if alike else (f"{name} ({found})" for name, found in seeds.items()))
    return ResultTable(
        title=f"{tables[names[requests[0]]].subject}: {listed} forgotten in turn"
        + (f", {seeds[names[requests[0]]]}" if alike else ""),
        columns=tuple(_of(column, name) for name, table in tables.items() for column in table.columns),
        rows=tuple(_merged(tables, order)),
        notes=tuple(_notes(tables)),
    )


def _seeds(cells: Sequence[Cell], request: tuple[int, ...]) -> str:
    found = sorted({cell.key.seed for cell in cells if cell.key.forget == request})
    return f"seed{'s' * (len(found) > 1)} {', '.join(map(str, found))}"


def _of(column: Column, name: str) -> Column:
    latex = f"{column.latex}, {latex_text(name)}"
    return replace(column, key=f"{column.key}.{name}", label=f"{column.label}, {name}", latex=latex)


def _merged(tables: dict[str, ResultTable], order: list[str]) -> list[TableRow]:
    rows: dict[tuple[str, bool], TableRow] = {}
    for name, table in tables.items():
        for row in table.rows:
            entries = {f"{key}.{name}": entry for key, entry in row.entries.items()}
            before = rows.setdefault((row.name, row.encoder), replace(row, entries={}))
            # What was tuned for one class only is neither.
            known = before.setting.split(" or ")
            setting = before.setting if row.setting in known else f"{before.setting} or {row.setting}"
            rows[row.name, row.encoder] = replace(before, setting=setting, entries={**before.entries, **entries})
    groups, places = list(GROUPS), {name: place for place, name in enumerate(order)}
    return sorted(
        rows.values(), key=lambda row: (groups.index(row.group), places.get(row.name, len(places)), row.encoder)
    )


def _notes(tables: dict[str, ResultTable]) -> list[str]:
    """What holds of all classes once, the rest with the class's name before it."""
    noted = [table.notes for table in tables.values()]
    shared = [note for note in noted[0] if all(note in notes for notes in noted)]
    return shared + [f"{name}: {note}" for name, table in tables.items() for note in table.notes if note not in shared]
