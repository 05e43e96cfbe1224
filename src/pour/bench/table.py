"""Tables of results: mean and deviation over seeds, beside the paper's values or other results."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from pour.bench.columns import PAPER_COLUMNS, Column, find_column, label_of, latex_text
from pour.bench.published import (
    Published,
    differs,
    published,
    published_examples,
    published_notes,
    unlike_published,
)
from pour.bench.rows import NOT_TUNED, REFERENCES
from pour.bench.store import SAME_IN_ALL_CELLS, StoredExperiment, check_unmixed, load_store, refuse_other
from pour.errors import UsageError
from pour.metrics.catalogue import metrics_among
from pour.metrics.predictions import answer_distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from pour.bench.columns import TableLayout
    from pour.bench.published import Difference
    from pour.bench.store import Cell

    _References: TypeAlias = Mapping[tuple[tuple[int, ...], int, str], Cell]

__all__ = ["GROUPS", "Entry", "Group", "ResultTable", "TableRow", "make_table", "other_options"]

Group = Literal["reference", "retain", "forget", ""]
GROUPS: dict[Group, str] = {
    "reference": "References",
    "retain": "With retained images",
    "forget": "Forget images alone, or none",
    "": "",
}
"""Groups of the paper, by the data that a method reads. A table of classes has none."""
CLASS_COLUMNS = ("acc_r_change", "acc_f", "aus", "rus_r")
"""Default columns of each request in a table of several requests."""

_SETTINGS = ("common", "tuned", "default")
"""Settings that the table names, because a method has several of them."""
# The paper attacks features before a projector.
_PRINTED_OF_THE_ENCODER = ("rmia",)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One metric of a row over its seeds, in the column's unit."""

    mean: float
    std: float | None = None
    """Sample deviation; None for a single value."""
    n: int | None = 1
    """Number of values; None for a printed value."""
    mark: Literal["best", "second"] | None = None
    difference: Difference | None = None
    """Side on which the value is more than two deviations from the value that it is compared with."""
    change: float | None = None
    """Mean difference from the original model, which a table of classes shows in brackets."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """Line of a table. A metric that was not measured has no entry."""

    name: str
    label: str
    """Text of the first column."""
    setting: str
    """Text of the second column."""
    group: Group
    entries: Mapping[str, Entry]
    """By the key of the column."""
    published: bool = False
    """Whether the values are printed in the paper."""
    elsewhere: bool = False
    """Whether the values are from other results."""
    encoder: bool = False
    """Whether the values are of the features before a projector, of the model in the line above."""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Table, ready for :func:`pour.bench.render`."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    heads: tuple[str, str] = ("method", "setting")
    """Titles of the first two columns."""
    subject: str = ""
    """Dataset, network and recipe."""

    def row(self, name: str) -> TableRow:
        """Return the measured line of a row."""
        for row in self.rows:
            if row.name == name and not (row.published or row.elsewhere or row.encoder):
                return row
        raise UsageError(f"The table has no row {name!r}; it has {', '.join(row.name for row in self.rows)}.")


@dataclass(frozen=True, kw_only=True)
class _Results:
    """Comparable cells, with what a table says about all of them."""

    path: Path
    cells: tuple[Cell, ...]
    experiment: StoredExperiment
    damage: tuple[str, ...]

    @property
    def layout(self) -> TableLayout:
        return self.experiment.table

    @property
    def subject(self) -> str:
        setup = self.cells[0].setup
        recipe = "" if setup["recipe"] is None else f", recipe {setup['recipe']['name']}"
        return f"{setup['dataset']}, {setup['architecture']}{recipe}"

    @property
    def references(self) -> _References:
        """Cells of the original and the retrained models, by request, seed and row."""
        found = {(cell.key.forget, cell.key.seed, cell.key.row): cell for cell in self.cells}
        return {key: cell for key, cell in found.items() if cell.key.row in REFERENCES}

    def columns(self, keys: Sequence[str] | None) -> tuple[Column, ...]:
        """Return columns by their keys: by default those of the experiment, of the paper, or of all metrics."""
        keys = keys or self.experiment.columns
        if not keys:
            measured = {name for cell in self.cells for name in cell.values}
            others = tuple(metric.name for metric in metrics_among(measured) if metric.name in measured)
            keys = PAPER_COLUMNS if "acc_r" in measured else others
        return tuple(map(find_column, dict.fromkeys(keys)))

    def requests(self) -> list[tuple[int, ...]]:
        """Return the requests of the cells: those of the experiment in its order, then others."""
        there = {cell.key.forget for cell in self.cells}
        listed = [request for request in self.experiment.forget if request in there]
        return [*listed, *sorted(there.difference(listed))]

    def named(self, request: tuple[int, ...]) -> str:
        """Return the names of a request's classes, or their indices if they have none."""
        cell = next(cell for cell in self.cells if cell.key.forget == request)
        return ", ".join(cell.forgotten_names or map(str, request))

    def by_row(self, request: tuple[int, ...] | None = None) -> dict[str, list[Cell]]:
        """Return the cells of one or all requests by row, in the order of the experiment."""
        found: dict[str, list[Cell]] = {row.name: [] for row in self.experiment.rows}
        for cell in self.cells:
            if request in (None, cell.key.forget):
                found.setdefault(cell.key.row, []).append(cell)
        return {name: cells for name, cells in found.items() if cells}

    def label(self, row: str, method: str | None) -> str:
        labels = {known.name: known.label for known in self.experiment.rows}
        return labels.get(row) or label_of(row, method)

    def find(self, wanted: Sequence[int | str]) -> tuple[int, ...]:
        """Return the request whose classes are given by name or index."""
        pairs = [pair for cell in self.cells for pair in zip(cell.forgotten_names, cell.key.forget, strict=False)]
        names = {name.lower(): label for name, label in pairs} | dict(pairs)
        found = [
            names.get(item, names.get(item.lower(), int(item) if item.isdecimal() else -1))
            if isinstance(item, str)
            else item
            for item in wanted
        ]
        there = self.requests()
        meant = next((request for request in there if sorted(request) == sorted(found)), None)
        if meant is None:
            asked, known = ", ".join(map(str, wanted)), "; ".join(map(self.named, there))
            raise UsageError(f"{self.path} has no results of forgetting {asked}; it has those of {known}.")
        return meant


def make_table(
    results: str | Path,
    *,
    forget: Sequence[int | str] | None = None,
    columns: Sequence[str] | None = None,
    against: str | Path | None = None,
    by_class: bool = False,
) -> ResultTable:
    """Return the table of a folder of results or of a published file.

    Args:
        results: Folder of ``pour bench``, or file of its ``--export``.
        forget: Classes of one request, by name or index. By default the first request of the experiment, or all
            requests if the experiment has a table of classes.
        columns: Metrics, see :func:`pour.bench.columns.find_column`. By default the experiment's.
        against: "paper" adds the printed values. Other results of the same experiment are added below each line. Values
            more than two deviations apart are marked.
        by_class: Put the columns of all requests side by side.
    """
    here = _load(results)
    if by_class:
        return _side_by_side(here, columns)
    if forget is None and here.layout.rows == "methods":
        forget = here.requests()[0]
    if against is None or against == "paper":
        return _one_table(here, forget, columns, paper=against == "paper")
    there = _load(against)
    if here.subject != there.subject:
        raise UsageError(
            f"{results} is of {here.subject}, and {against} of {there.subject}: give results of the same experiment."
        )
    table = _one_table(here, forget, columns)
    return _above(here, table, there, _one_table(there, forget, [column.key for column in table.columns]))


def _one_table(
    results: _Results, forget: Sequence[int | str] | None, columns: Sequence[str] | None, *, paper: bool = False
) -> ResultTable:
    requests = results.requests() if forget is None else [results.find(forget)]
    if results.layout.rows == "methods":
        return _methods_table(results, requests[0], columns, paper=paper)
    return _requests_table(results, requests, columns, paper=paper)


def _load(results: str | Path) -> _Results:
    store = load_store(results)
    if not store.cells:
        raise UsageError(f"{store.path} holds no whole cell; run pour bench --out {store.path} first.")
    check_unmixed(store.cells)
    damage = [
        f"Damaged cells are left out ({len(store.damaged)}), such as {name}; pour bench makes them anew."
        for name in store.damaged[:1]
    ]
    experiment = store.experiment or StoredExperiment(name="")
    return _Results(path=store.path, cells=store.cells, experiment=experiment, damage=tuple(damage))


def _methods_table(
    results: _Results, request: tuple[int, ...], columns: Sequence[str] | None, *, paper: bool = False
) -> ResultTable:
    """Return the table of one request, grouped by the data that methods read."""
    shown = results.columns(columns)
    if paper and columns is None:
        # POUR-P is judged by its change from its own original.
        changes = {"acc_r": "acc_r_change", "acc_r_external": "acc_r_change_external"}
        keys = [column.key for column in shown]
        shown = results.columns([*keys, *(change for key, change in changes.items() if key in keys)])
    by_row = results.by_row(request)
    groups = list(GROUPS)
    by_row = dict(sorted(by_row.items(), key=lambda item: groups.index(_group(item[1][0]))))
    rows = _mark_best([line for name, cells in by_row.items() for line in _lines(results, name, cells, shown)], shown)
    seeds = sorted({cell.key.seed for cells in by_row.values() for cell in cells})
    notes = [*_method_notes(by_row, results.experiment, len(seeds)), *results.damage]
    if paper:
        setup = results.cells[0].setup
        unlike = unlike_published(setup["dataset"], request, setup["architecture"])
        rows = _above_paper(rows, shown, by_row, compare=unlike is None)
        arrows = "Arrows: above or below the printed value by more than two deviations."
        notes += [unlike or arrows, *published_notes(setup["dataset"])]
    return ResultTable(
        title=f"{results.subject}: {results.named(request)} forgotten, {_seed_text(seeds)}",
        subject=results.subject,
        columns=shown,
        rows=tuple(rows),
        notes=tuple(notes),
    )


def _requests_table(
    results: _Results, requests: Sequence[tuple[int, ...]], columns: Sequence[str] | None, *, paper: bool
) -> ResultTable:
    """Return the table of several requests, one or more lines per request and row."""
    layout, setup = results.layout, results.cells[0].setup
    shown = results.columns(columns)
    blocks = _class_blocks(results, requests) if layout.rows == "classes" else _concept_blocks(results, requests)
    rows = [
        TableRow(
            name=f"{label}-{row}",
            label=label,
            setting=results.label(row, cells[0].setup["method"]),
            group="" if layout.rows == "classes" else "forget",
            entries=_entries(
                cells, shown, results.references, changes=layout.rows == "classes" and row not in REFERENCES
            ),
        )
        for label, row, cells in blocks
    ]
    notes = _request_notes(results, blocks)
    if paper and (printed := published_examples(results.experiment.task)) is not None:
        rows += [_example(name, values, printed.label, rows[0].group, shown) for name, values in printed.rows.items()]
        said = [printed.note] if printed.dataset in (None, setup["dataset"]) else [printed.note, printed.otherwise]
        notes += [f"{printed.label}: {' '.join(said)}"] if printed.note else []
    measured = {key for row in rows for key in row.entries}
    return ResultTable(
        title=f"{setup['dataset']}, {setup['architecture']}: {layout.title}",
        subject=results.subject,
        columns=shown if columns else tuple(column for column in shown if column.key in measured),
        rows=tuple(rows),
        notes=(*notes, *results.damage),
        heads=layout.heads,
    )


def _class_blocks(results: _Results, requests: Sequence[tuple[int, ...]]) -> list[tuple[str, str, list[Cell]]]:
    """Return label, row and cells of each line: request by request."""
    return [
        (results.named(request), row, cells) for request in requests for row, cells in results.by_row(request).items()
    ]


def _concept_blocks(results: _Results, requests: Sequence[tuple[int, ...]]) -> list[tuple[str, str, list[Cell]]]:
    """Return label, row and cells of each line: all concepts that were forgotten alone, several at once, each alone."""
    rows = results.by_row()
    single: list[tuple[int, ...]] = sorted(request for request in requests if len(request) == 1)
    several = sorted((request for request in requests if len(request) > 1), key=lambda key: (len(key), key))
    sizes = [len(request) for request in several]
    # A name is needed only among requests of the same size.
    joint = {
        request: f"{len(request)} at once" + (f": {results.named(request)}" if sizes.count(len(request)) > 1 else "")
        for request in several
    }
    lines = [(f"each of {len({*single} & {cell.key.forget for cell in rows[row]})}", row, single) for row in rows]
    lines = lines if len(single) > 1 else []
    lines += [(label, row, [request]) for request, label in joint.items() for row in rows]
    lines += [(results.named(request), row, [request]) for row in rows for request in single]
    blocks = [(label, row, [cell for cell in rows[row] if cell.key.forget in wanted]) for label, row, wanted in lines]
    return [block for block in blocks if block[2]]


def _example(name: str, values: Mapping[str, float], label: str, group: Group, columns: tuple[Column, ...]) -> TableRow:
    """Return the line of a class that the paper forgets."""
    known = dict(values)
    if "acc_f_before" in values:
        known["fall"] = 100 * (1 - values["acc_f"] / values["acc_f_before"])
    known |= {f"{key}_change": values[key] - values[f"{key}_before"] for key in values if f"{key}_before" in values}
    entries = {
        column.key: Entry(mean=known[column.key], n=None, change=None if group else known.get(f"{column.key}_change"))
        for column in columns
        if column.key in known
    }
    return TableRow(name=name, label=name, setting=label, group=group, entries=entries, published=True)


def _request_notes(results: _Results, blocks: list[tuple[str, str, list[Cell]]]) -> list[str]:
    """Return the experiment's notes, the notes of rows, and the failures."""
    notes = list(results.layout.notes)
    if results.layout.rows == "concepts":
        seeds = _seed_text(sorted({cell.key.seed for cell in results.cells}))
        notes = [" ".join([f"{seeds.capitalize()}; deviations are over concepts and seeds.", *notes])]
    gaps = [cell.values["fold_gap"].value for cell in results.cells if "fold_gap" in cell.values]
    if gaps:
        notes.append(f"Folded into the visual projection, the cosines differ by at most {max(gaps):.1e}.")
    labels = {row: results.label(row, cells[0].setup["method"]) for _, row, cells in blocks}
    said = [f"{labels[row]}: {cell.note.removesuffix('.')}." for _, row, cells in blocks for cell in cells if cell.note]
    failed = [(label, labels[row], cell.failed) for label, row, cells in blocks for cell in cells if cell.failed]
    notes += [*dict.fromkeys(said), *(f"{row} on {label} failed: {why}" for label, row, why in failed)]
    before = [cell.values["transfer_before"].value for cell in results.cells if "transfer_before" in cell.values]
    if before:
        notes.append(f"Transfer: zero-shot on {results.cells[0].setup['transfer']}, {before[0]:.2%} before.")
    return notes


def _seed_text(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _group(cell: Cell) -> Group:
    if cell.setup["method"] is None:
        return "reference"
    return "retain" if {"retain", "validation"} & set(cell.needs) else "forget"


def _lines(results: _Results, name: str, cells: list[Cell], columns: tuple[Column, ...]) -> list[TableRow]:
    """Return the line of a row, and a line for its encoder if a projector stands before the head."""
    setup = cells[0].setup
    setting = setup["setting"] if setup["setting"] in _SETTINGS else ""
    row = TableRow(
        name=name,
        label=results.label(name, setup["method"]),
        # A row for tuned options that nobody tuned is called default.
        setting="default" if setting and all(cell.note.startswith(NOT_TUNED) for cell in cells) else setting,
        group=_group(cells[0]),
        entries=_entries(cells, columns, results.references),
    )
    raw = _entries(cells, columns, results.references, prefix="raw.")
    return [row, replace(row, label=f"{row.label}, encoder", entries=raw, encoder=True)] if raw else [row]


def _entries(
    cells: Iterable[Cell],
    columns: tuple[Column, ...],
    references: _References,
    *,
    prefix: str = "",
    changes: bool = False,
) -> dict[str, Entry]:
    """Return the means of a row's cells.

    Args:
        cells: Cells of the row.
        columns: Columns of the table.
        references: Cells of the original and the retrained models.
        prefix: "raw." for the features before a projector.
        changes: Add the difference from the original model to metrics in percent.
    """
    whole = [cell for cell in cells if cell.failed is None]
    entries: dict[str, Entry] = {}
    for column in columns:
        line = f"{prefix}{column.line}"
        values = _values(whole, line, column, references)
        if not values:
            continue
        entry = Entry(
            mean=statistics.fmean(values), std=statistics.stdev(values) if len(values) > 1 else None, n=len(values)
        )
        if changes and column.percent and not column.change:
            differences = _values(whole, line, replace(column, change=True), references)
            entry = replace(entry, change=statistics.fmean(differences) if differences else None)
        entries[column.key] = entry
    return entries


def _values(cells: list[Cell], line: str, column: Column, references: _References) -> list[float]:
    """Return a metric of each cell that has it, in the column's unit."""
    found = [_value(cell, line, column, references) for cell in cells]
    return [value for value in found if value is not None]


def _value(cell: Cell, line: str, column: Column, references: _References) -> float | None:
    reading = cell.values.get(line)
    if reading is None:
        return _answer_distance(cell, references, column) if line == "answers_r" else None
    if not column.change:
        return reading.value * column.scale
    original = references.get((cell.key.forget, cell.key.seed, "original"))
    before = cell.values.get(f"{line}_before") or (None if original is None else original.values.get(line))
    return None if before is None else (reading.value - before.value) * column.scale


def _answer_distance(cell: Cell, references: _References, column: Column) -> float | None:
    """Return the distance of answers for cells that have the answers but not the metric."""
    retrained = references.get((cell.key.forget, cell.key.seed, "retrained"))
    if retrained is None or not (any(cell.answers) and any(retrained.answers)):
        return None
    return column.scale * answer_distance(cell.answers, retrained.answers).value


def _mark_best(rows: list[TableRow], columns: tuple[Column, ...]) -> list[TableRow]:
    """Mark the best and the second best value of the group "forget". Equal digits share a mark."""
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
        replace(row, entries={key: replace(entry, mark=marks.get((index, key))) for key, entry in row.entries.items()})
        for index, row in enumerate(rows)
    ]


def _above_paper(
    rows: list[TableRow], columns: tuple[Column, ...], by_row: Mapping[str, list[Cell]], *, compare: bool
) -> list[TableRow]:
    """Add the printed line below the last line of each method, and mark values that differ from it."""
    result: list[TableRow] = []
    with_encoder = {row.name for row in rows if row.encoder}
    dataset = next(iter(by_row.values()))[0].setup["dataset"]
    methods = [by_row[row.name][0].setup["method"] or row.name for row in rows]
    # A second seed and a method's further variants have no line in the paper.
    known = [
        row.name in (*REFERENCES, method, *(f"{method}-{setting}" for setting in _SETTINGS))
        for row, method in zip(rows, methods, strict=True)
    ]
    compared = {method for method, has_line in zip(methods, known, strict=True) if has_line}
    for index, (row, method) in enumerate(zip(rows, methods, strict=True)):
        paper = {column.key: published(dataset, method, column) for column in columns} if method in compared else {}
        printed = {key: value for key, value in paper.items() if value is not None}
        measured_alike = {
            key: value
            for key, value in printed.items()
            if row.encoder == (key in _PRINTED_OF_THE_ENCODER and row.name in with_encoder)
        }
        result.append(_mark_differences(row, measured_alike) if compare and known[index] else row)
        if printed and method not in methods[index + 1 : index + 2]:
            shown = {key: Entry(mean=value.mean, std=value.std, n=None) for key, value in printed.items()}
            line = replace(row, label=label_of(method, method), setting="paper", entries=shown)
            result.append(replace(line, published=True, encoder=False))
    return result


def _mark_differences(row: TableRow, others: Mapping[str, Published]) -> TableRow:
    """Return the line with a mark at each value that is more than two deviations from another one."""
    entries = {
        key: replace(entry, difference=differs(entry.mean, entry.std, others[key])) if key in others else entry
        for key, entry in row.entries.items()
    }
    return replace(row, entries=entries)


def _method_notes(by_row: Mapping[str, list[Cell]], experiment: StoredExperiment, seeds: int) -> list[str]:
    notes = [f"Mean and sample deviation over {seeds} seeds." if seeds > 1 else "One seed: no deviation."]
    for name, cells in by_row.items():
        whole = [cell for cell in cells if cell.failed is None]
        failed = [cell for cell in cells if cell.failed is not None]
        if failed:
            notes.append(f"{name} failed on {len(failed)} of {len(cells)} seeds: {failed[0].failed}")
        slowed = [cell for cell in whole if cell.rate_factor < 1]
        if slowed:
            parts = sorted({round(1 / cell.rate_factor) for cell in slowed})
            notes.append(
                f"{name} diverged at its learning rate on {len(slowed)} of {len(cells)} seeds and ran at "
                f"{' or '.join(f'1/{part}' for part in parts)} of it there."
            )
        said = [cell.warnings[-1] for cell in whole if cell.warnings]
        if said:
            notes.append(f"{name} warned on {len(said)} of {len(cells)} seeds: {said[0]}")
        if any(set(cell.tuned_on) & set(cell.key.forget) for cell in cells):
            notes.append(f"{name} was tuned on a class that is shown here, so it is no fair test.")
        if any(cell.tuned_with == cell.key.seed for cell in cells):
            notes.append(f"{name} was tuned with a seed that is shown here, so it is no fair test.")
    for count in sorted({len(cells) for cells in by_row.values() if len(cells) < seeds}):
        names = [name for name, cells in by_row.items() if len(cells) == count]
        notes.append(f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {count} of {seeds} seeds.")
    listed = {row.name: row.setting for row in experiment.rows}
    missing = {name: setting for name, setting in listed.items() if name not in by_row}
    for setting in _SETTINGS:
        of_setting = [name for name in listed if listed[name] == setting]
        if len(of_setting) > 1 and missing.keys() >= set(of_setting):
            notes.append(f"Not run: the setting {setting}.")
            missing = {name: other for name, other in missing.items() if other != setting}
    if missing:
        notes.append(f"Not run yet: {', '.join(missing)}.")
    return notes


def _side_by_side(results: _Results, columns: Sequence[str] | None) -> ResultTable:
    """Return one table with the columns of every request, one request after the other."""
    requests = results.requests()
    if len(requests) == 1:
        raise UsageError(
            f"{results.path} has results of forgetting {results.named(requests[0])} alone; there is nothing beside it."
        )
    measured = {line for cell in results.cells for line in cell.values}
    default = CLASS_COLUMNS if {"aus", "rus_r"} <= measured else None
    tables = {results.named(request): _methods_table(results, request, columns or default) for request in requests}
    seeds = {
        results.named(request): _seed_text(
            sorted({cell.key.seed for cell in results.cells if cell.key.forget == request})
        )
        for request in requests
    }
    # Requests with other seeds have other networks.
    alike = len(set(seeds.values())) == 1
    listed = "; ".join(tables if alike else (f"{name} ({found})" for name, found in seeds.items()))
    noted = [table.notes for table in tables.values()]
    shared = [note for note in noted[0] if all(note in notes for notes in noted)]
    return ResultTable(
        title=f"{results.subject}: {listed} forgotten in turn{f', {seeds[next(iter(seeds))]}' if alike else ''}",
        subject=results.subject,
        columns=tuple(_of_request(column, name) for name, table in tables.items() for column in table.columns),
        rows=tuple(_merge_rows(tables, [row.name for row in results.experiment.rows])),
        notes=(
            *shared,
            *(f"{name}: {note}" for name, table in tables.items() for note in table.notes if note not in shared),
        ),
    )


def _of_request(column: Column, name: str) -> Column:
    return replace(
        column,
        key=f"{column.key}.{name}",
        label=f"{column.label}, {name}",
        latex=f"{column.latex}, {latex_text(name)}",
    )


def _merge_rows(tables: Mapping[str, ResultTable], order: list[str]) -> list[TableRow]:
    """Return the rows of several tables, each once, with the entries of all tables."""
    rows: dict[tuple[str, bool], TableRow] = {}
    for name, table in tables.items():
        for row in table.rows:
            entries = {f"{key}.{name}": entry for key, entry in row.entries.items()}
            before = rows.setdefault((row.name, row.encoder), replace(row, entries={}))
            # A row that was tuned for one class only has two settings.
            known = before.setting.split(" or ")
            setting = before.setting if row.setting in known else f"{before.setting} or {row.setting}"
            rows[row.name, row.encoder] = replace(before, setting=setting, entries={**before.entries, **entries})
    groups, places = list(GROUPS), {name: place for place, name in enumerate(order)}
    return sorted(
        rows.values(), key=lambda row: (groups.index(row.group), places.get(row.name, len(places)), row.encoder)
    )


def _above(here: _Results, table: ResultTable, there: _Results, below: ResultTable) -> ResultTable:
    """Return a table with the lines of other results below its own, and marks at values that differ.

    Of many values, some differ by more than two deviations by chance.
    """
    other, one, two = str(there.path), here.cells[0], there.cells[0]
    asked = {name: one.setup.get(name) for name in SAME_IN_ALL_CELLS}
    refuse_other(there.path, {"name": there.subject, **two.setup}, asked)
    known = {(row.name, row.encoder): row for row in below.rows}
    rows: list[TableRow] = []
    shared = compared = different = 0
    for row in table.rows:
        before = known.get((row.name, row.encoder))
        if before is None:
            rows.append(row)
            continue
        marked = _mark_differences(
            row, {key: Published(entry.mean, entry.std) for key, entry in before.entries.items()}
        )
        entries = {key: replace(entry, mark=None) for key, entry in before.entries.items()}
        rows += [marked, replace(before, setting=other, entries=entries, elsewhere=True)]
        # Without a deviation on either side, nobody can say whether two values differ.
        both = [(entry.std, before.entries[key].std) for key, entry in row.entries.items() if key in before.entries]
        shared += len(both)
        compared += sum(deviations != (None, None) for deviations in both)
        different += sum(entry.difference is not None for entry in marked.entries.values())
    arrows = (
        f"Arrows: above or below the value of {other} by more than two deviations ({different} of {compared} values)."
    )
    if not compared:
        arrows = f"One seed on either side: nothing says whether values of {other} differ."
    unlike = {"in another precision": one.precision != two.precision, "on other images": one.data != two.data}
    notes = [
        *table.notes,
        arrows if shared else f"No value of these columns is in {other} too.",
        *(f"{other} ran {how}." for how, differs in unlike.items() if differs),
        *(f"{other}: {note}" for note in below.notes if note not in table.notes),
        *(f"{row} ran with other options in {other}: {how}." for row, how in _other_options(here, there).items()),
    ]
    if only := [row.name for row in table.rows if (row.name, row.encoder) not in known and not row.encoder]:
        notes.append(f"Not in {other}: {', '.join(only)}.")
    if only := [name for name, encoder in known if not encoder and name not in {row.name for row in table.rows}]:
        notes.append(f"Only in {other}: {', '.join(only)}.")
    return replace(table, rows=tuple(rows), notes=tuple(notes))


def other_options(results: str | Path, other: str | Path) -> dict[str, str]:
    """Return the rows that ran with other options in the second results, and these options."""
    return _other_options(_load(results), _load(other))


def _other_options(here: _Results, there: _Results) -> dict[str, str]:
    ours, theirs = ({cell.key.row: cell.setup["options"] for cell in results.cells} for results in (here, there))
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
