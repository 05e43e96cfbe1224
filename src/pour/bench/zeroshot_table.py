"""The zero-shot experiment as a table (concept by concept, and on average) and as the paper's bars."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from pour.bench.columns import Column
from pour.bench.store import check_unmixed, load_store, read_store
from pour.bench.table import Entry, ResultTable, TableRow, damage_notes
from pour.errors import UsageError
from pour.report.figures.changes import changes_data, draw_changes
from pour.report.figures.saving import save_figure
from pour.report.figures.style import Theme

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from pour.bench.store import Cell

__all__ = ["draw_zero_shot", "is_zero_shot_store", "save_bars", "zero_shot_table"]

ZERO_SHOT = "zeroshot"
"""Name of the experiment."""
_SETTINGS = {
    "text": "text (paper)",
    "specific": "specific",
    "centered": "centred",
    "random": "random (control)",
}
ROWS = tuple(_SETTINGS)
"""Rows of the experiment."""
_PAPER = "paper: CLIP-L/14, ImageNet"


def _column(key: str, label: str, latex: str, better: Literal["higher", "lower"], *, change: bool = False) -> Column:
    return Column(key=key, line=key, label=label, latex=latex, percent=True, better=better, change=change)


_COLUMNS = (
    _column("acc_f_before", "Acc_f before", "Acc$_f$ before", "higher"),
    _column("acc_f", "Acc_f", "Acc$_f$", "lower"),
    _column("fall", "fall of Acc_f, %", "fall of Acc$_f$, \\%", "higher"),
    _column("acc_r_before", "Acc_r before", "Acc$_r$ before", "higher"),
    _column("acc_r", "Acc_r", "Acc$_r$", "higher"),
    _column("acc_r_change", "change of Acc_r", "$\\Delta$Acc$_r$", "higher", change=True),
    _column("transfer_change", "change of transfer", "$\\Delta$transfer", "higher", change=True),
)


def is_zero_shot_store(out: str | Path) -> bool:
    """Whether a folder holds results of the zero-shot experiment."""
    experiment = load_store(out).experiment
    return experiment is not None and experiment.layout == "concepts"


def zero_shot_table(out: str | Path, *, against: Literal["paper"] | None = None) -> ResultTable:
    """Read a store into a table: for each kind of direction the mean over concepts, all at once, and each concept.

    Args:
        out: the store.
        against: "paper" adds the printed values for CLIP-L/14 on ImageNet.
    """
    folder = Path(out)
    store = load_store(folder)
    cells = store.cells
    if not cells:
        raise UsageError(f"{folder} holds no whole cell; run pour bench {ZERO_SHOT} --out {folder} first.")
    check_unmixed(cells)
    present = [row for row in ROWS if any(cell.key.row == row for cell in cells)]
    single = {row: [cell for cell in cells if cell.key.row == row and len(cell.key.forget) == 1] for row in present}
    rows = [_row(f"each of {_concepts(single[row])}", row, single[row]) for row in present if single[row]]
    for label, asked in _joint(cells).items():
        rows += [_row(label, row, own) for row in present if (own := [cell for cell in asked if cell.key.row == row])]
    for row in present:
        concepts = sorted({cell.key.forget for cell in single[row]})
        for concept in concepts:
            own = [cell for cell in single[row] if cell.key.forget == concept]
            rows.append(_row(own[0].forgotten_names[0], row, own))
    if against == "paper":
        rows += _published()
    setup = cells[0].setup
    return ResultTable(
        title=f"{setup['dataset']}, {setup['architecture']}: zero-shot accuracy before and after forgetting by text",
        columns=tuple(column for column in _COLUMNS if any(column.key in row.entries for row in rows)),
        rows=tuple(rows),
        notes=(*_notes(cells), *damage_notes(store)),
        heads=("forgotten", "what is removed"),
    )


def _joint(cells: Sequence[Cell]) -> dict[str, list[Cell]]:
    """The cells of each request for several concepts, by a label that names them where others are as many."""
    requests = sorted({cell.key.forget for cell in cells if len(cell.key.forget) > 1}, key=lambda key: (len(key), key))
    sizes = [len(request) for request in requests]
    found: dict[str, list[Cell]] = {}
    for request in requests:
        own = [cell for cell in cells if cell.key.forget == request]
        label = f"{len(request)} at once"
        found[label if sizes.count(len(request)) == 1 else f"{label}: {', '.join(own[0].forgotten_names)}"] = own
    return found


def _concepts(cells: Sequence[Cell]) -> int:
    return len({cell.key.forget for cell in cells})


def _row(label: str, row: str, cells: Sequence[Cell]) -> TableRow:
    entries: dict[str, Entry] = {}
    for column in _COLUMNS:
        found = [value for cell in cells if (value := _value(cell, column.key)) is not None]
        if found:
            deviation = statistics.stdev(found) if len(found) > 1 else None
            entries[column.key] = Entry(mean=statistics.fmean(found), std=deviation, n=len(found))
    return TableRow(name=f"{label}-{row}", label=label, setting=_SETTINGS[row], group="forget", entries=entries)


def _value(cell: Cell, key: str) -> float | None:
    if key.endswith("_change"):
        name = key.removesuffix("_change")
        after, before = cell.values.get(name), cell.values.get(f"{name}_before")
        return None if after is None or before is None else 100 * (after.value - before.value)
    found = cell.values.get(key)
    return None if found is None else 100 * found.value


def _published() -> list[TableRow]:
    text = Path(__file__).with_name("published_zeroshot.json").read_text(encoding="utf-8")
    rows = []
    for name, printed in json.loads(text).items():
        values = dict(printed)
        values["fall"] = 100 * (1 - values["acc_f"] / values["acc_f_before"])
        values["acc_r_change"] = values["acc_r"] - values["acc_r_before"]
        entries = {key: Entry(mean=value, n=None) for key, value in values.items()}
        rows.append(TableRow(name=name, label=name, setting=_PAPER, group="forget", entries=entries, published=True))
    return rows


def _notes(cells: Sequence[Cell]) -> list[str]:
    seeds = sorted({cell.key.seed for cell in cells})
    notes = [
        f"Seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}; deviations are over concepts and seeds. "
        "No image was used to forget, and no score is masked."
    ]
    known = [reading.value for cell in cells if (reading := cell.values.get("fold_gap")) is not None]
    if known:
        notes.append(f"Folded into the visual projection, the cosines differ by at most {max(known):.1e}.")
    reasons = sorted({cell.note for cell in cells if cell.note})
    notes.extend(reasons)
    if any("transfer" in cell.values for cell in cells):
        start = next(cell.values["transfer_before"].value for cell in cells if "transfer" in cell.values)
        if start is not None:
            notes.append(f"Transfer: zero-shot on {cells[0].setup['transfer']}, {start:.2%} before.")
    return notes


def draw_zero_shot(out: str | Path, *, row: str = "specific", seed: int = 0, theme: Theme = "light") -> Figure:
    """Draw the paper's bars: the change in each class's accuracy, a line to each concept that was forgotten alone.

    Args:
        out: the store.
        row: which kind of direction.
        seed: of training.
        theme: light or dark.
    """
    folder = Path(out)
    chosen = [cell for cell in read_store(folder) if (cell.key.row, cell.key.seed) == (row, seed)]
    cells = sorted((cell for cell in chosen if len(cell.key.forget) == 1), key=lambda cell: cell.key.forget)
    if not cells:
        raise UsageError(
            f"{folder} has no results of the row {row!r} and seed {seed}; run pour bench {ZERO_SHOT} first."
        )
    check_unmixed(cells)
    counts = [_counts(cell, (folder / cell.key.path).with_suffix(".report.json")) for cell in cells]
    images = torch.tensor(counts[0]["images"])
    names = [cell.forgotten_names[0] for cell in cells]
    data = changes_data(
        _confusion(images, torch.tensor(counts[0]["before"])),
        {name: _confusion(images, torch.tensor(found["after"])) for name, found in zip(names, counts, strict=True)},
        classes=counts[0]["classes"],
        forgotten={name: cell.key.forget for name, cell in zip(names, cells, strict=True)},
    )
    return draw_changes(data, theme=theme)


def save_bars(out: str | Path) -> list[Path]:
    """Write the bars of every kind of direction, light and dark, to ``figures/`` in the store."""
    folder = Path(out)
    single = [cell.key for cell in read_store(folder) if len(cell.key.forget) == 1]
    files = []
    for row in ROWS:
        seeds = [key.seed for key in single if key.row == row]
        if seeds:
            for theme in get_args(Theme):
                figure = draw_zero_shot(folder, row=row, seed=min(seeds), theme=theme)
                files.append(save_figure(figure, folder / "figures" / f"changes-{row}-{theme}.svg"))
    return files


def _counts(cell: Cell, path: Path) -> dict[str, Any]:
    """Return the number of images of each class, and of right answers before and after, from a cell or its report."""
    accuracies = {name[4:]: reading for name, reading in cell.values.items() if name.startswith("acc.")}
    names = [name for name in accuracies if f"{name}_before" in accuracies]
    if names:
        images = [accuracies[name].n or 0 for name in names]
        right = {
            key: [round(accuracies[name + suffix].value * n) for name, n in zip(names, images, strict=True)]
            for key, suffix in (("before", "_before"), ("after", ""))
        }
        return {"classes": names, "images": images, **right}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        _ = found["images"], found["before"], found["after"], found["classes"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        file = path.name.replace(".report", "")
        raise UsageError(
            f"{path} is missing or damaged; remove {file} beside it and run pour bench {ZERO_SHOT} again."
        ) from error
    return found


def _confusion(images: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """A confusion matrix with these many right answers; which wrong ones were given is not known."""
    return torch.diag(right) + torch.diag(images - right).roll(1, dims=1)
