"""One store beside another of the same experiment: whether what one run found, another finds again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour.bench.published import Published, differs
from pour.bench.store import SAME_IN_ALL_CELLS, load_store, read_store, refuse_other
from pour.bench.table import ResultTable, find_request, make_table
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pour.bench.store import Cell
    from pour.bench.table import TableRow

__all__ = ["make_replication_table", "other_options"]


def make_replication_table(
    out: str | Path,
    other: str | Path,
    *,
    forget: Sequence[int | str] | None = None,
    columns: Sequence[str] | None = None,
) -> ResultTable:
    """Read a store into a table that has the lines of another store below its own.

    A value that is more than two deviations from the other's is marked, both sides' deviations counted, and a row that
    ran with other options there is told below the table. Of many values some are that far apart by chance.

    Args:
        out: the store.
        other: a store of the same dataset, network, recipe and classes.
        forget: which request's results, its classes by name or index; by default the first of the experiment that has
            any.
        columns: keys of :data:`pour.bench.columns.COLUMNS`; by default the experiment's.
    """
    here = make_table(out, forget=forget, columns=columns)
    request = find_request(out, read_store(out), load_store(out).experiment, forget)
    there = make_table(other, forget=request, columns=[column.key for column in here.columns])
    if here.subject != there.subject:
        raise UsageError(
            f"{out} is of {here.subject}, and {other} of {there.subject}: give a folder of the same experiment."
        )
    one, two = (read_store(folder)[0] for folder in (out, other))
    asked = {name: one.setup.get(name) for name in SAME_IN_ALL_CELLS}
    refuse_other(Path(other), {"name": there.subject, **two.setup}, asked)
    known = {(row.name, row.encoder): row for row in there.rows}
    rows: list[TableRow] = []
    shared = compared = different = 0
    for row in here.rows:
        before = known.get((row.name, row.encoder))
        marked = row if before is None else _marked(row, before)
        rows.append(marked)
        if before is not None:
            entries = {key: replace(entry, mark=None) for key, entry in before.entries.items()}
            rows.append(replace(before, setting=str(other), entries=entries, elsewhere=True))
            # Without a deviation on either side nobody can say whether two values differ.
            both = [(entry.std, before.entries[key].std) for key, entry in row.entries.items() if key in before.entries]
            shared += len(both)
            compared += sum(deviations != (None, None) for deviations in both)
            different += sum(entry.difference is not None for entry in marked.entries.values())
    arrows = (
        f"Arrows: above or below the value of {other} by more than two deviations ({different} of {compared} values)."
    )
    if not compared:
        arrows = f"One seed on either side: nothing says whether values of {other} differ."
    notes = [
        *here.notes,
        arrows if shared else f"No value of these columns is in {other} too.",
        *_unlike(str(other), one, two),
        *(f"{other}: {note}" for note in there.notes if note not in here.notes),
        *(f"{row} ran with other options in {other}: {how}." for row, how in other_options(out, other).items()),
    ]
    if only := [row.name for row in here.rows if (row.name, row.encoder) not in known and not row.encoder]:
        notes.append(f"Not in {other}: {', '.join(only)}.")
    if only := [name for name, encoder in known if not encoder and name not in {row.name for row in here.rows}]:
        notes.append(f"Only in {other}: {', '.join(only)}.")
    return replace(here, rows=tuple(rows), notes=tuple(notes))


def _unlike(other: str, one: Cell, two: Cell) -> list[str]:
    differences = {"in another precision": one.precision != two.precision, "on other images": one.data != two.data}
    return [f"{other} ran {how}." for how, differs in differences.items() if differs]


def _marked(row: TableRow, before: TableRow) -> TableRow:
    entries = {
        key: replace(entry, difference=differs(entry.mean, entry.std, Published(other.mean, other.std)))
        if (other := before.entries.get(key)) is not None
        else entry
        for key, entry in row.entries.items()
    }
    return replace(row, entries=entries)


def other_options(out: str | Path, other: str | Path) -> dict[str, str]:
    """The rows of two stores that ran with other options in the second, and with which."""
    ours, theirs = _options(out), _options(other)
    found = {}
    for row in sorted(ours.keys() & theirs.keys()):
        changed = [
            f"{name}={theirs[row].get(name)}, not {ours[row].get(name)}"
            for name in sorted(ours[row].keys() | theirs[row].keys())
            if ours[row].get(name) != theirs[row].get(name)
        ]
        if changed:
            found[row] = "; ".join(changed)
    return found


def _options(out: str | Path) -> Mapping[str, dict[str, Any]]:
    """Those of each row, which are the same for all its seeds and classes."""
    return {cell.key.row: cell.setup["options"] for cell in read_store(out)}
