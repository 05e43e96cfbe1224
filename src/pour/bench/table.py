"""From a store to a table: mean and deviation over seeds, grouped by the data that a method may see."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pour.bench.columns import COLUMNS, PAPER_COLUMNS, Column, label_of
from pour.bench.published import differs, published, published_notes, unlike_published
from pour.bench.rows import NOT_TUNED, REFERENCES
from pour.bench.store import check_unmixed, load_store
from pour.errors import UsageError
from pour.metrics.predictions import answer_distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from pour.bench.published import Difference
    from pour.bench.store import Cell, Store, StoredExperiment

    _References: TypeAlias = Mapping[tuple[int, str], Cell]

__all__ = [
    "GROUPS",
    "Entry",
    "Group",
    "ResultTable",
    "TableRow",
    "comparable_cells",
    "find_request",
    "forgotten_name",
    "make_table",
    "requests_in",
]

Group = Literal["reference", "retain", "forget"]
GROUPS: dict[Group, str] = {
    "reference": "References",
    "retain": "With retained images",
    "forget": "Forget images alone, or none",
}
"""The paper's groups, in its order; best and second best are marked in the last one."""


# Of a method that has more than one row for them.
_SETTINGS = ("common", "tuned", "default")
# The paper attacks features before a projector.
_PRINTED_OF_THE_ENCODER = ("rmia",)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A measure of a row over its seeds, in the column's unit."""

    mean: float
    std: float | None = None
    """Sample deviation over seeds; None for a single one."""
    n: int | None = 1
    """Seeds; None for a printed value that does not say."""
    mark: Literal["best", "second"] | None = None
    difference: Difference | None = None
    """Beyond two deviations from the paper's value."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """A line of the table; a measure that is not there has no entry."""

    name: str
    label: str
    setting: str
    group: Group
    entries: Mapping[str, Entry]
    published: bool = False
    """Whether this is what the paper prints."""
    elsewhere: bool = False
    """Whether this is what another store holds."""
    encoder: bool = False
    """Whether this scores the encoder's features before a projector, of the model in the line above."""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table, ready for :func:`pour.bench.render`."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    heads: tuple[str, str] = ("method", "setting")
    """What the first two columns are."""
    subject: str = ""
    """Dataset, network and recipe, where rows are methods."""

    def row(self, name: str) -> TableRow:
        """The measured line of a row by its name."""
        for row in self.rows:
            if row.name == name and not (row.published or row.elsewhere or row.encoder):
                return row
        raise UsageError(f"The table has no row {name!r}; it has {', '.join(row.name for row in self.rows)}.")


@dataclass
class _Collected:
    """The cells of one row, one to a seed."""

    name: str
    cells: list[Cell] = field(default_factory=list)

    @property
    def whole(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.failed is None]

    @property
    def projected(self) -> bool:
        return any(name.startswith("raw.") for cell in self.whole for name in cell.values)


def make_table(
    out: str | Path,
    *,
    forget: Sequence[int | str] | None = None,
    columns: Sequence[str] | None = None,
    against: Literal["paper"] | None = None,
) -> ResultTable:
    """Read a store into a table.

    Args:
        out: the store.
        forget: which request's results, its classes by name or index; by default the first of the experiment that has
            any.
        columns: keys of :data:`pour.bench.columns.COLUMNS`; by default the experiment's.
        against: "paper" puts the printed values below each method's rows and marks measured ones beyond two deviations.
    """
    folder = Path(out)
    cells = comparable_cells(folder)
    store = load_store(folder)
    experiment = store.experiment
    request = find_request(folder, cells, experiment, forget)
    cells = [cell for cell in cells if cell.key.forget == request]
    keys = tuple(dict.fromkeys(columns or (experiment.columns if experiment else ()) or PAPER_COLUMNS))
    if against == "paper" and columns is None:
        # POUR-P is judged by its change from its own original.
        changes = {"acc_r": "acc_r_change", "acc_r_external": "acc_r_change_external"}
        keys += tuple(change for key, change in changes.items() if key in keys and change not in keys)
    shown = _columns(keys)
    listed = {row.name: row.setting for row in (experiment.rows if experiment else ())}
    collected = _collect(cells, list(listed))
    references = {(cell.key.seed, cell.key.row): cell for cell in cells if cell.key.row in REFERENCES}
    rows = [row for entry in collected for row in _rows(entry, shown, references)]
    rows = _marked(rows, shown)
    dataset = cells[0].setup["dataset"]
    unlike: str | None = None
    if against == "paper":
        unlike = unlike_published(dataset, request, cells[0].setup["architecture"])
        firsts = {entry.name: entry.cells[0] for entry in collected}
        rows = _beside_published(rows, shown, dataset, firsts, compare=unlike is None)
    seeds = sorted({cell.key.seed for cell in cells})
    subject = f"{dataset}, {cells[0].setup['architecture']}, recipe {cells[0].setup['recipe']['name']}"
    return ResultTable(
        title=f"{subject}: {forgotten_name(cells[0])} forgotten, seed{'s' * (len(seeds) > 1)} "
        f"{', '.join(map(str, seeds))}",
        subject=subject,
        columns=shown,
        rows=tuple(rows),
        notes=(
            *_notes(collected, listed, len(seeds)),
            *damage_notes(store),
            *(_paper_notes(dataset, unlike) if against == "paper" else ()),
        ),
    )


def _paper_notes(dataset: str, unlike: str | None) -> list[str]:
    arrows = "Arrows: above or below the printed value by more than two deviations."
    return [arrows if unlike is None else unlike, *published_notes(dataset)]


def damage_notes(store: Store) -> list[str]:
    """Return a sentence about damaged cells, if there are any."""
    if not store.damaged:
        return []
    return [
        f"Damaged cells are left out ({len(store.damaged)}), such as {store.damaged[0]}; pour bench makes them anew."
    ]


def comparable_cells(folder: Path) -> list[Cell]:
    """The cells of a store, at least one, all of which may stand in one table."""
    cells = list(load_store(folder).cells)
    if not cells:
        raise UsageError(f"{folder} holds no whole cell; run pour bench --out {folder} first.")
    check_unmixed(cells)
    return cells


def forgotten_name(cell: Cell) -> str:
    """What a cell forgot: the classes' names, or their indices where they have none."""
    return ", ".join(cell.forgotten_names) or ", ".join(map(str, cell.key.forget))


def requests_in(cells: Iterable[Cell], experiment: StoredExperiment | None) -> list[tuple[int, ...]]:
    """What the cells forgot: the experiment's requests in its order, then others."""
    there = {cell.key.forget for cell in cells}
    listed = [request for request in (experiment.forget if experiment else ()) if request in there]
    return [*listed, *sorted(there.difference(listed))]


def find_request(
    out: str | Path, cells: Sequence[Cell], experiment: StoredExperiment | None, wanted: Sequence[int | str] | None
) -> tuple[int, ...]:
    """The request of a store that is meant, its classes by name or index; without any the experiment's first."""
    there = requests_in(cells, experiment)
    if wanted is None:
        return there[0]
    names = {name: label for cell in cells for name, label in zip(cell.forgotten_names, cell.key.forget, strict=False)}
    found = tuple(
        names.get(item, int(item) if item.isdecimal() else -1) if isinstance(item, str) else item for item in wanted
    )
    meant = next((request for request in there if sorted(request) == sorted(found)), None)
    if meant is not None:
        return meant
    known = {cell.key.forget: forgotten_name(cell) for cell in cells}
    asked = ", ".join(map(str, wanted))
    raise UsageError(
        f"{out} has no results of forgetting {asked}; it has those of {'; '.join(known[key] for key in there)}."
    )


def _columns(keys: Sequence[str]) -> tuple[Column, ...]:
    unknown = [key for key in keys if key not in COLUMNS]
    if unknown:
        raise UsageError(f"There is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}.")
    return tuple(COLUMNS[key] for key in keys)


def _collect(cells: list[Cell], order: list[str]) -> list[_Collected]:
    by_row: dict[str, _Collected] = {name: _Collected(name) for name in order}
    for cell in cells:
        by_row.setdefault(cell.key.row, _Collected(cell.key.row)).cells.append(cell)
    found = [entry for entry in by_row.values() if entry.cells]
    groups = list(GROUPS)
    return sorted(found, key=lambda entry: groups.index(_group(entry.cells[0])))


def _group(cell: Cell) -> Group:
    if cell.setup["method"] is None:
        return "reference"
    return "retain" if {"retain", "validation"} & set(cell.needs) else "forget"


def _rows(entry: _Collected, columns: tuple[Column, ...], references: _References) -> list[TableRow]:
    cell = entry.cells[0]
    setting = cell.setup["setting"] if cell.setup["setting"] in _SETTINGS else ""
    # A row that was to be tuned and was not must not look as if it had been.
    setting = "default" if setting and all(cell.note.startswith(NOT_TUNED) for cell in entry.cells) else setting
    row = TableRow(
        name=entry.name,
        label=label_of(entry.name, cell.setup["method"]),
        setting=setting,
        group=_group(cell),
        entries=_entries(entry.whole, columns, references, raw=False),
    )
    if not entry.projected:
        return [row]
    # A projector in front of the head does not change the encoder, and the reader must see that.
    raw = _entries(entry.whole, columns, references, raw=True)
    return [row, replace(row, label=f"{row.label}, encoder", entries=raw, encoder=True)] if raw else [row]


def _entries(cells: list[Cell], columns: tuple[Column, ...], references: _References, *, raw: bool) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for column in columns:
        name = f"raw.{column.line}" if raw else column.line
        values = [value for cell in cells if (value := _value(cell, name, column, references)) is not None]
        if values:
            deviation = statistics.stdev(values) if len(values) > 1 else None
            entries[column.key] = Entry(mean=statistics.fmean(values), std=deviation, n=len(values))
    return entries


def _value(cell: Cell, name: str, column: Column, references: _References) -> float | None:
    original, retrained = (references.get((cell.key.seed, row)) for row in ("original", "retrained"))
    if name == "answers_r" and name not in cell.values:
        # Cells that are older than this measure have the answers that it is made of.
        if retrained is None or not (any(cell.answers) and any(retrained.answers)):
            return None
        return column.scale * answer_distance(cell.answers, retrained.answers).value
    reading = cell.values.get(name)
    value = None if reading is None else reading.value
    if value is None or not column.change:
        return None if value is None else value * column.scale
    earlier = None if original is None else original.values[name].value
    return None if earlier is None else (value - earlier) * column.scale


def _marked(rows: list[TableRow], columns: tuple[Column, ...]) -> list[TableRow]:
    """Mark the best and the second best of the forget-only group, as printed: equal digits share a mark."""
    marks: dict[tuple[int, str], Literal["best", "second"]] = {}
    for column in columns:
        competing = {
            index: round(row.entries[column.key].mean, 2)
            for index, row in enumerate(rows)
            if row.group == "forget" and not row.encoder and column.key in row.entries
        }
        ranked = sorted(set(competing.values()), reverse=column.better == "higher")
        for index, value in competing.items():
            if value in ranked[:2]:
                marks[index, column.key] = "best" if value == ranked[0] else "second"
    return [
        replace(
            row,
            entries={key: replace(entry, mark=marks.get((index, key))) for key, entry in row.entries.items()},
        )
        for index, row in enumerate(rows)
    ]


def _beside_published(
    rows: list[TableRow], columns: tuple[Column, ...], dataset: str, cells: Mapping[str, Cell], *, compare: bool
) -> list[TableRow]:
    result: list[TableRow] = []
    with_encoder = {row.name for row in rows if row.encoder}
    methods = [cells[row.name].setup["method"] or row.name for row in rows]
    # A second seed and a method's further variants have no line in the paper.
    known = [
        row.name in (*REFERENCES, method, *(f"{method}-{setting}" for setting in _SETTINGS))
        for row, method in zip(rows, methods, strict=True)
    ]
    compared = {method for method, has_line in zip(methods, known, strict=True) if has_line}
    for index, (row, method) in enumerate(zip(rows, methods, strict=True)):
        paper = {column.key: published(dataset, method, column) for column in columns} if method in compared else {}
        printed = {key: value for key, value in paper.items() if value is not None}
        entries = dict(row.entries)
        for key, value in printed.items() if known[index] else ():
            # The line that the paper measured too.
            encoder = key in _PRINTED_OF_THE_ENCODER and row.name in with_encoder
            if compare and key in entries and row.encoder == encoder:
                entries[key] = replace(entries[key], difference=differs(entries[key].mean, entries[key].std, value))
        result.append(replace(row, entries=entries))
        if printed and method not in methods[index + 1 : index + 2]:
            shown = {key: Entry(mean=value.mean, std=value.std, n=None) for key, value in printed.items()}
            result.append(
                TableRow(
                    name=row.name,
                    label=label_of(method, method),
                    setting="paper",
                    group=row.group,
                    entries=shown,
                    published=True,
                )
            )
    return result


def _notes(collected: list[_Collected], listed: Mapping[str, str], seeds: int) -> list[str]:
    notes = [f"Mean and sample deviation over {seeds} seeds." if seeds > 1 else "One seed: no deviation."]
    for entry in collected:
        failed = [cell for cell in entry.cells if cell.failed is not None]
        if failed:
            notes.append(f"{entry.name} failed on {len(failed)} of {len(entry.cells)} seeds: {failed[0].failed}")
        slowed = [cell for cell in entry.whole if cell.rate_factor < 1]
        if slowed:
            parts = sorted({round(1 / cell.rate_factor) for cell in slowed})
            notes.append(
                f"{entry.name} diverged at its learning rate on {len(slowed)} of {len(entry.cells)} seeds and ran at "
                f"{' or '.join(f'1/{part}' for part in parts)} of it there."
            )
        said = [cell.warnings[-1] for cell in entry.whole if cell.warnings]
        if said:
            notes.append(f"{entry.name} warned on {len(said)} of {len(entry.cells)} seeds: {said[0]}")
        seen = [cell for cell in entry.cells if set(cell.tuned_on) & set(cell.key.forget)]
        if seen:
            notes.append(f"{entry.name} was tuned on a class that is shown here, so it is no fair test.")
        if any(cell.tuned_with == cell.key.seed for cell in entry.cells):
            notes.append(f"{entry.name} was tuned with a seed that is shown here, so it is no fair test.")
    for count in sorted({len(entry.cells) for entry in collected if len(entry.cells) < seeds}):
        names = [entry.name for entry in collected if len(entry.cells) == count]
        notes.append(f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {count} of {seeds} seeds.")
    missing = {name: setting for name, setting in listed.items() if name not in {entry.name for entry in collected}}
    for setting in _SETTINGS:
        of_setting = [name for name in listed if listed[name] == setting]
        if len(of_setting) > 1 and missing.keys() >= set(of_setting):
            notes.append(f"Not run: the setting {setting}.")
            missing = {name: other for name, other in missing.items() if other != setting}
    if missing:
        notes.append(f"Not run yet: {', '.join(missing)}.")
    return notes
