"""Tables of results: mean and deviation over seeds, beside the paper's values or other results."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from pour.bench.columns import Column, find_column
from pour.bench.published import (
    Entry,
    differs,
    published,
    published_examples,
    published_notes,
    unlike_published,
)
from pour.bench.rows import REFERENCES, label_of
from pour.bench.store import (
    SAME_IN_ALL_CELLS,
    Store,
    StoredExperiment,
    check_unmixed,
    load_store,
    refuse_other,
    seed_text,
)
from pour.errors import UsageError
from pour.metrics.catalogue import metrics_among

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pour.bench.published import Examples
    from pour.bench.store import Cell

__all__ = ["GROUPS", "Group", "ResultTable", "TableRow", "make_table", "other_options"]

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
_MARKS: tuple[Literal["best", "second"], ...] = ("best", "second")
# The paper attacks features before a projector.
_PRINTED_OF_THE_ENCODER = ("rmia",)


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """Line of a table. A metric that was not measured has no entry."""

    name: str
    label: str
    """Text of the first column."""
    setting: str
    """Text of the second column."""
    group: Group
    cells: tuple[Cell, ...] = ()
    """Cells whose means are the entries."""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    """Entries by the key of their column."""
    published: bool = False
    """Whether the values are printed in the paper."""
    elsewhere: bool = False
    """Whether the values are from other results."""
    encoder: bool = False
    """Whether the values are of the features before a projector, of the model in the line above."""


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Table, ready for `pour.bench.render`."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    heads: tuple[str, str] = ("method", "setting")
    """Titles of the first two columns."""

    def row(self, name: str) -> TableRow:
        """Return the measured line of a row."""
        for row in self.rows:
            if row.name == name and not (row.published or row.elsewhere or row.encoder):
                return row
        raise UsageError(f"The table has no row {name!r}; it has {', '.join(row.name for row in self.rows)}.")


@dataclass(frozen=True, kw_only=True)
class _Results(Store):
    """Comparable cells and their experiment."""

    experiment: StoredExperiment

    @property
    def damage(self) -> list[str]:
        """Sentence about damaged cells, if cells are damaged."""
        count = len(self.damaged)
        note = "Damaged cells are left out ({}), such as {}; pour bench makes them anew."
        return [note.format(count, name) for name in self.damaged[:1]]

    @property
    def subject(self) -> str:
        """Dataset, network and recipe."""
        setup = self.cells[0].setup
        recipe = "" if setup["recipe"] is None else f", recipe {setup['recipe']['name']}"
        return f"{setup['dataset']}, {setup['architecture']}{recipe}"

    @cached_property
    def originals(self) -> dict[tuple[tuple[int, ...], int], Cell]:
        """Cells of the original models by request and seed."""
        return {(cell.key.forget, cell.key.seed): cell for cell in self.cells if cell.key.row == "original"}

    def columns(self, keys: Sequence[str] | None) -> tuple[Column, ...]:
        """Return the columns of keys, by default of the experiment or of all metrics."""
        measured = {name for cell in self.cells for name in cell.values}
        default = [metric.name for metric in metrics_among(measured) if metric.name in measured]
        return tuple(map(find_column, dict.fromkeys(keys or self.experiment.columns or default)))

    def requests(self) -> list[tuple[int, ...]]:
        """Return the requests of the cells, first the requests of the experiment in its order."""
        measured = {cell.key.forget for cell in self.cells}
        listed = [request for request in self.experiment.forget if request in measured]
        return [*listed, *sorted(measured.difference(listed))]

    def class_names(self, request: tuple[int, ...]) -> str:
        """Return the names of a request's classes, or their indices if they have no names."""
        cell = next(cell for cell in self.cells if cell.key.forget == request)
        return ", ".join(cell.class_names)

    def by_row(self, *requests: tuple[int, ...]) -> dict[str, list[Cell]]:
        """Return the cells of requests by row, in the order of the experiment."""
        rows: dict[str, list[Cell]] = {row.name: [] for row in self.experiment.rows}
        for cell in self.cells:
            if cell.key.forget in requests:
                rows.setdefault(cell.key.row, []).append(cell)
        return {name: cells for name, cells in rows.items() if cells}

    def label(self, cell: Cell) -> str:
        """Return the name of a cell's row."""
        labels = {row.name: row.label for row in self.experiment.rows}
        return labels.get(cell.key.row) or label_of(cell.key.row, cell.setup["method"])

    def find_request(self, classes: Sequence[int | str]) -> tuple[int, ...]:
        """Return the request of classes that are given by name or index."""
        pairs = [pair for cell in self.cells for pair in zip(cell.forgotten_names, cell.key.forget, strict=False)]
        indices = {name.lower(): label for name, label in pairs} | dict(pairs)
        labels = [
            indices.get(item, indices.get(item.lower(), item)) if isinstance(item, str) else item for item in classes
        ]
        for request in self.requests():
            if sorted(map(str, request)) == sorted(map(str, labels)):
                return request
        existing = "; ".join(map(self.class_names, self.requests()))
        raise UsageError(
            f"{self.path} has no results of forgetting {', '.join(map(str, classes))}; it has those of {existing}."
        )


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
        results: Folder of `pour bench`, or file of its `--export`.
        forget: Classes of one request, by name or index. By default the first request of the experiment, or all
            requests if the experiment has a table of classes.
        columns: Metrics, see `pour.bench.columns.find_column`. By default the experiment's.
        against: "paper" adds the printed values. Other results of the same experiment are added below each line. Values
            more than two deviations apart are marked.
        by_class: Put the columns of all requests side by side.
    """
    measured = _load(results)
    if by_class:
        return _side_by_side(measured, columns)
    if forget is None and measured.experiment.table.rows == "methods":
        forget = measured.requests()[0]
    if against is None or against == "paper":
        return _one_table(measured, forget, columns, paper=against == "paper")
    other = _load(against)
    setup = measured.cells[0].setup
    settings = {name: setup.get(name) for name in SAME_IN_ALL_CELLS}
    refuse_other(other.path, {"name": other.subject, **other.cells[0].setup}, settings)
    table = _one_table(measured, forget, columns)
    return _above_other(measured, table, other, _one_table(other, forget, [column.key for column in table.columns]))


def _load(results: str | Path) -> _Results:
    store = load_store(results)
    if not store.cells:
        raise UsageError(f"{store.path} contains no whole cell; run pour bench --out {store.path} first.")
    check_unmixed(store.cells)
    return _Results(**vars(store) | {"experiment": store.experiment or StoredExperiment(name="")})


def _one_table(
    results: _Results, forget: Sequence[int | str] | None, columns: Sequence[str] | None, *, paper: bool = False
) -> ResultTable:
    """Return the table of one or all requests, in the experiment's arrangement."""
    requests = results.requests() if forget is None else [results.find_request(forget)]
    layout, setup = results.experiment.table, results.cells[0].setup
    if layout.rows == "methods":
        return _methods_table(results, requests[0], columns, paper=paper)
    shown_columns = results.columns(columns)
    if layout.rows == "classes":
        lines = [line for request in requests for line in _request_lines(results, request, "")]
    else:
        lines = _concept_lines(results, requests)
    rows = [_row(results, line, shown_columns, changes=layout.rows == "classes") for line in lines]
    notes = _request_notes(results, lines)
    if paper:
        examples = published_examples(results.experiment.task)
        rows += [_example_row(results, name, examples, shown_columns) for name in examples.rows]
        notes += [examples.note_for(setup["dataset"])] if examples.note else []
    measured = {key for row in rows for key in row.entries}
    return ResultTable(
        title=f"{setup['dataset']}, {setup['architecture']}: {layout.title}",
        columns=shown_columns if columns else tuple(column for column in shown_columns if column.key in measured),
        rows=tuple(rows),
        notes=(*notes, *results.damage),
        heads=layout.heads,
    )


def _methods_table(
    results: _Results, request: tuple[int, ...], columns: Sequence[str] | None, *, paper: bool = False
) -> ResultTable:
    """Return the table of one request, grouped by the data that methods read."""
    shown_columns = results.columns(columns)
    if paper and columns is None:
        # POUR-P is compared with its own original.
        changes = {"acc_r": "acc_r_change", "acc_r_external": "acc_r_change_external"}
        keys = [column.key for column in shown_columns]
        shown_columns = results.columns([*keys, *(change for key, change in changes.items() if key in keys)])
    lines = _method_lines(results, request)
    rows = _mark_best([row for line in lines for row in _rows(results, line, shown_columns)], shown_columns)
    notes = [*_method_notes(lines, results.experiment), *results.damage]
    if paper:
        setup = results.cells[0].setup
        unlike = unlike_published(setup["dataset"], request, setup["architecture"])
        rows = _above_paper(rows, shown_columns, compare=unlike is None)
        arrows = "Arrows: above or below the printed value by more than two deviations."
        notes += [unlike or arrows, *published_notes(setup["dataset"])]
    seeds = seed_text(cell for line in lines for cell in line.cells)
    title = f"{results.subject}: {results.class_names(request)} forgotten, {seeds}"
    return ResultTable(title=title, columns=shown_columns, rows=tuple(rows), notes=tuple(notes))


def _method_lines(results: _Results, request: tuple[int, ...]) -> list[TableRow]:
    """Return one line per row of a request, by group."""
    lines = []
    for name, cells in results.by_row(request).items():
        setting = cells[0].setup["setting"] if cells[0].setup["setting"] in _SETTINGS else ""
        # A row for tuned options is called default if its method was not tuned.
        if setting and all(cell.untuned for cell in cells):
            setting = "default"
        label, group = results.label(cells[0]), _group(cells[0])
        lines.append(TableRow(name=name, label=label, setting=setting, group=group, cells=tuple(cells)))
    return sorted(lines, key=lambda line: list(GROUPS).index(line.group))


def _group(cell: Cell) -> Group:
    if cell.setup["method"] is None:
        return "reference"
    return "retain" if {"retain", "validation"} & set(cell.needs) else "forget"


def _concept_lines(results: _Results, requests: Sequence[tuple[int, ...]]) -> list[TableRow]:
    """Return the lines of all concepts that were forgotten alone, of several at once, and of each concept."""
    single = sorted(request for request in requests if len(request) == 1)
    several = sorted((request for request in requests if len(request) > 1), key=lambda key: (len(key), key))
    sizes = [len(request) for request in several]
    rows = results.by_row(*single)
    lines = []
    if len(single) > 1:
        for cells in rows.values():
            label = f"each of {len({cell.key.forget for cell in cells})}"
            lines.append(_request_line(results, label, cells, "forget"))
    for request in several:
        # A name is needed only among requests of the same size.
        names = f": {results.class_names(request)}" if sizes.count(len(request)) > 1 else ""
        lines += _request_lines(results, request, "forget", f"{len(request)} at once{names}")
    order = list(rows)
    each = [line for request in single for line in _request_lines(results, request, "forget")]
    return [*lines, *sorted(each, key=lambda line: order.index(line.cells[0].key.row))]


def _request_lines(results: _Results, request: tuple[int, ...], group: Group, label: str = "") -> list[TableRow]:
    name = label or results.class_names(request)
    return [_request_line(results, name, cells, group) for cells in results.by_row(request).values()]


def _request_line(results: _Results, label: str, cells: list[Cell], group: Group) -> TableRow:
    name = f"{label}-{cells[0].key.row}"
    return TableRow(name=name, label=label, setting=results.label(cells[0]), group=group, cells=tuple(cells))


def _example_row(results: _Results, name: str, examples: Examples, columns: tuple[Column, ...]) -> TableRow:
    """Return the line of a class that the paper forgets."""
    values = dict(examples.rows[name])
    values |= {f"{key}_change": values[key] - values[f"{key}_before"] for key in values if f"{key}_before" in values}
    if "acc_f_before" in values:
        values["fall"] = 100 * (1 - values["acc_f"] / values["acc_f_before"])
    entries = {column.key: Entry(mean=values[column.key], n=None) for column in columns if column.key in values}
    group: Group = "forget"
    if results.experiment.table.rows == "classes":
        group = ""
        entries = {key: replace(entry, change=values[f"{key}_change"]) for key, entry in entries.items()}
    return TableRow(name=name, label=name, setting=examples.label, group=group, entries=entries, published=True)


def _row(
    results: _Results, line: TableRow, columns: tuple[Column, ...], *, encoder: bool = False, changes: bool = False
) -> TableRow:
    """Return the means of a line.

    Args:
        results: Results of the line.
        line: Cells and texts.
        columns: Columns of the table.
        encoder: Take the features before a projector.
        changes: Add the difference from the original model to metrics in percent.
    """
    cells = [cell for cell in line.cells if cell.failed is None]
    entries: dict[str, Entry] = {}
    for column in columns:
        raw = replace(column, line=f"raw.{column.line}") if encoder else column
        values = _values(results, cells, raw)
        if not values:
            continue
        deviation = statistics.stdev(values) if len(values) > 1 else None
        entries[column.key] = Entry(mean=statistics.fmean(values), std=deviation, n=len(values))
        if changes and column.percent and cells[0].setup["method"] is not None:
            differences = _values(results, cells, replace(raw, change=True))
            change = statistics.fmean(differences) if differences else None
            entries[column.key] = replace(entries[column.key], change=change)
    label = f"{line.label}, encoder" if encoder else line.label
    return replace(line, label=label, entries=entries, encoder=encoder)


def _rows(results: _Results, line: TableRow, columns: tuple[Column, ...]) -> list[TableRow]:
    """Return the row of a line, and a row of its encoder if the head has a projector."""
    encoder = _row(results, line, columns, encoder=True)
    return [_row(results, line, columns), *([encoder] if encoder.entries else [])]


def _values(results: _Results, cells: list[Cell], column: Column) -> list[float]:
    """Return a metric of each cell that has it, in the column's unit."""
    values = []
    for cell in cells:
        reading, before = cell.values.get(column.line), cell.values.get(f"{column.line}_before")
        original = results.originals.get((cell.key.forget, cell.key.seed))
        if before is None and original is not None:
            before = original.values.get(column.line)
        if reading is not None and not column.change:
            values.append(reading.value * column.scale)
        elif reading is not None and before is not None:
            values.append((reading.value - before.value) * column.scale)
    return values


def _mark_best(rows: list[TableRow], columns: tuple[Column, ...]) -> list[TableRow]:
    """Mark the best and the second best value of the group "forget". Equal digits share a mark."""
    competing = [row for row in rows if row.group == "forget" and not row.encoder]
    best: dict[str, list[float]] = {}
    for column in columns:
        values = {round(row.entries[column.key].mean, 2) for row in competing if column.key in row.entries}
        best[column.key] = sorted(values, reverse=column.better == "higher")[:2]

    def marked(row: TableRow) -> TableRow:
        values = {key: round(entry.mean, 2) for key, entry in row.entries.items()}
        marks = {key: _MARKS[best[key].index(value)] for key, value in values.items() if value in best[key]}
        return replace(row, entries={key: replace(entry, mark=marks.get(key)) for key, entry in row.entries.items()})

    return [marked(row) if row in competing else row for row in rows]


def _above_paper(rows: list[TableRow], columns: tuple[Column, ...], *, compare: bool) -> list[TableRow]:
    """Add the printed line below the last line of each method, and mark values that differ from it."""
    dataset = rows[0].cells[0].setup["dataset"]
    methods = {row.name: row.cells[0].setup["method"] or row.name for row in rows}
    # The paper has no value for a second seed, or for further variants of a method.
    compared = {
        name
        for name, method in methods.items()
        if name in (*REFERENCES, method, *(f"{method}-{setting}" for setting in _SETTINGS))
    }
    with_encoder = {row.name for row in rows if row.encoder}
    result: list[TableRow] = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        method = methods[row.name]
        paper = {column.key: published(dataset, method, column) for column in columns}
        printed = {key: value for key, value in paper.items() if value is not None}
        measured_alike = {
            key: value
            for key, value in printed.items()
            if row.encoder == (key in _PRINTED_OF_THE_ENCODER and row.name in with_encoder)
        }
        result.append(_mark_differences(row, measured_alike) if compare and row.name in compared else row)
        is_last = following is None or methods[following.name] != method
        if printed and is_last and any(methods[name] == method for name in compared):
            line = replace(row, label=label_of(method, method), setting="paper", entries=printed)
            result.append(replace(line, cells=(), published=True, encoder=False))
    return result


def _mark_differences(row: TableRow, others: Mapping[str, Entry]) -> TableRow:
    """Return the line with a mark at each value that is more than two deviations from another one."""
    entries = {
        key: replace(entry, difference=differs(entry, others[key])) if key in others else entry
        for key, entry in row.entries.items()
    }
    return replace(row, entries=entries)


def _method_notes(lines: list[TableRow], experiment: StoredExperiment) -> list[str]:
    seeds = len({cell.key.seed for line in lines for cell in line.cells})
    notes = [f"Mean and sample deviation over {seeds} seeds." if seeds > 1 else "One seed: no deviation."]
    notes += [note for line in lines for note in _row_notes(line.name, line.cells)]
    for count in sorted({len(line.cells) for line in lines if len(line.cells) < seeds}):
        names = [line.name for line in lines if len(line.cells) == count]
        notes.append(f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {count} of {seeds} seeds.")
    measured = {line.name for line in lines}
    missing = {row.name: row.setting for row in experiment.rows if row.name not in measured}
    for setting in _SETTINGS:
        names = [row.name for row in experiment.rows if row.setting == setting]
        if len(names) > 1 and missing.keys() >= set(names):
            notes.append(f"Not run: the setting {setting}.")
            missing = {name: other for name, other in missing.items() if other != setting}
    return [*notes, *([f"Not run yet: {', '.join(missing)}."] if missing else [])]


def _failures(name: str, cells: Sequence[Cell], unit: str) -> list[str]:
    reasons = [cell.failed for cell in cells if cell.failed is not None]
    return [f"{name} failed on {len(reasons)} of {len(cells)} {unit}: {reasons[0]}"] if reasons else []


def _row_notes(name: str, cells: Sequence[Cell]) -> list[str]:
    """Return sentences about failures, smaller learning rates, warnings and unfair tests of a row."""
    notes = _failures(name, cells, "seeds")
    whole = [cell for cell in cells if cell.failed is None]
    factors = [cell.rate_factor for cell in whole if cell.rate_factor < 1]
    if factors:
        parts = " or ".join(f"1/{part}" for part in sorted({round(1 / factor) for factor in factors}))
        rate = f"diverged at its learning rate on {len(factors)} of {len(cells)} seeds and ran at {parts} of it there"
        notes.append(f"{name} {rate}.")
    warnings = [cell.warnings[-1] for cell in whole if cell.warnings]
    if warnings:
        notes.append(f"{name} warned on {len(warnings)} of {len(cells)} seeds: {warnings[0]}")
    if any(set(cell.tuned_on) & set(cell.key.forget) for cell in cells):
        notes.append(f"{name} was tuned on a class that is shown here, so it is no fair test.")
    if any(cell.tuned_with == cell.key.seed for cell in cells):
        notes.append(f"{name} was tuned with a seed that is shown here, so it is no fair test.")
    return notes


def _request_notes(results: _Results, lines: list[TableRow]) -> list[str]:
    """Return the notes of the experiment and of its rows."""
    notes, cells = list(results.experiment.table.notes), [cell for line in lines for cell in line.cells]
    if results.experiment.table.rows == "concepts":
        seeds = seed_text(cells).capitalize()
        notes = [" ".join([f"{seeds}; deviations are over concepts and seeds.", *notes])]
    gaps = [cell.values["fold_gap"].value for cell in cells if "fold_gap" in cell.values]
    if gaps:
        notes.append(f"Folded into the visual projection, the cosines differ by at most {max(gaps):.1e}.")
    for row_cells in results.by_row(*{cell.key.forget for cell in cells}).values():
        label = results.label(row_cells[0])
        notes += dict.fromkeys(f"{label}: {cell.note.removesuffix('.')}." for cell in row_cells if cell.note)
        notes += _failures(label, row_cells, "cells")
    before = [cell.values["transfer_before"].value for cell in cells if "transfer_before" in cell.values]
    if before:
        notes.append(f"Transfer: zero-shot on {cells[0].setup['transfer']}, {before[0]:.2%} before.")
    return notes


def _side_by_side(results: _Results, columns: Sequence[str] | None) -> ResultTable:
    """Return one table with the columns of every request, one request after the other."""
    names = {request: results.class_names(request) for request in results.requests()}
    if len(names) == 1:
        raise UsageError(
            f"{results.path} has results of forgetting {', '.join(names.values())} alone; there is nothing beside it."
        )
    if not columns and all("aus" in cell.values and "rus_r" in cell.values for cell in results.originals.values()):
        columns = CLASS_COLUMNS
    tables = {name: _methods_table(results, request, columns) for request, name in names.items()}
    rows: dict[tuple[str, bool], TableRow] = {}
    for name, table in tables.items():
        for row in table.rows:
            entries = {f"{key}.{name}": entry for key, entry in row.entries.items()}
            merged = rows.setdefault((row.name, row.encoder), replace(row, cells=(), entries={}))
            # A row that was tuned for one class only has two settings.
            setting = " or ".join(dict.fromkeys([*merged.setting.split(" or "), row.setting]))
            rows[row.name, row.encoder] = replace(
                merged, setting=setting, cells=(*merged.cells, *row.cells), entries={**merged.entries, **entries}
            )
    order = list(results.by_row(*names))
    notes = [table.notes for table in tables.values()]
    shared = [note for note in notes[0] if all(note in others for others in notes)]
    seeds = [seed_text(cell for cell in results.cells if cell.key.forget == request) for request in names]
    # Requests with other seeds have other networks.
    alike = len({*seeds}) == 1
    listed = list(tables) if alike else [f"{name} ({seed_list})" for name, seed_list in zip(tables, seeds, strict=True)]
    subject = f"{results.subject}: {'; '.join(listed)} forgotten in turn"
    return ResultTable(
        title=f"{subject}, {seeds[0]}" if alike else subject,
        columns=tuple(column.of_classes(name) for name, table in tables.items() for column in table.columns),
        rows=tuple(
            sorted(rows.values(), key=lambda row: (list(GROUPS).index(row.group), order.index(row.name), row.encoder))
        ),
        notes=(
            *shared,
            *(f"{name}: {note}" for name, table in tables.items() for note in table.notes if note not in shared),
        ),
    )


def _above_other(measured: _Results, table: ResultTable, other: _Results, below: ResultTable) -> ResultTable:
    """Return a table with the lines of other results below its own, and marks at values that differ.

    Of many values, some differ by more than two deviations by chance.
    """
    path, cell, other_cell = str(other.path), measured.cells[0], other.cells[0]
    other_rows = {(row.name, row.encoder): row for row in below.rows}
    rows: list[TableRow] = []
    shared = compared = different = 0
    for row in table.rows:
        if (row.name, row.encoder) not in other_rows:
            rows.append(row)
            continue
        line = other_rows[row.name, row.encoder]
        marked = _mark_differences(row, line.entries)
        entries = {key: replace(entry, mark=None) for key, entry in line.entries.items()}
        rows += [marked, replace(line, setting=path, entries=entries, elsewhere=True)]
        # Without a deviation on either side, two values cannot be compared.
        both = [(entry.std, line.entries[key].std) for key, entry in row.entries.items() if key in line.entries]
        shared += len(both)
        compared += sum(deviations != (None, None) for deviations in both)
        different += sum(entry.difference is not None for entry in marked.entries.values())
    count = f"{different} of {compared} values"
    marks = f"Arrows: above or below the value of {path} by more than two deviations ({count})."
    if not compared:
        marks = f"One seed on either side: nothing says whether values of {path} differ."
    if not shared:
        marks = f"No value of these columns is in {path} too."
    names = [name for name, is_encoder in other_rows if not is_encoder]
    own_names = [row.name for row in table.rows if not row.encoder]
    absent = [name for name in own_names if name not in names]
    additional = [name for name in names if name not in own_names]
    options = other_options(measured.cells, other.cells)
    notes = [
        *table.notes,
        marks,
        *([f"{path} ran in another precision."] if cell.precision != other_cell.precision else []),
        *([f"{path} ran on other images."] if cell.data != other_cell.data else []),
        *(f"{path}: {note}" for note in below.notes if note not in table.notes),
        *(f"{row} ran with other options in {path}: {how}." for row, how in options.items()),
        *([f"Not in {path}: {', '.join(absent)}."] if absent else []),
        *([f"Only in {path}: {', '.join(additional)}."] if additional else []),
    ]
    return replace(table, rows=tuple(rows), notes=tuple(notes))


def other_options(cells: Iterable[Cell], other: Iterable[Cell]) -> dict[str, str]:
    """Return the rows that ran with other options in the second results, and these options."""
    pair = [{cell.key.row: cell.setup["options"] for cell in each} for each in (cells, other)]
    changed: dict[str, list[str]] = {}
    for row in sorted(pair[0].keys() & pair[1].keys()):
        first, second = (options[row] for options in pair)
        for name in sorted(first.keys() | second.keys()):
            if first.get(name) != second.get(name):
                changed.setdefault(row, []).append(f"{name}={second.get(name)}, not {first.get(name)}")
    return {row: "; ".join(options) for row, options in changed.items()}
