"""The segmentation experiment as a table: a block to a forgotten class, as in the paper, before and after."""

from __future__ import annotations

import csv
import io
import json
import statistics
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.table import Table
from rich.text import Text

from pour.bench.columns import label_of
from pour.bench.rendering import Format, latex_text
from pour.bench.store import check_unmixed, load_store
from pour.bench.table import damage_notes
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pour.bench.store import Cell

__all__ = ["SceneLine", "is_scene_store", "render_scenes", "scene_lines", "scene_table"]

_COLUMNS = {
    "iou_r": "IoU_r",
    "iou_r_rest": "IoU_r, rest",
    "iou_f": "IoU_f",
    "cka_f_o": "CKA_f(o)",
    "cka_r_o": "CKA_r(o)",
    "rus_o": "RUS(o)",
    "raw.rus_o": "RUS(o), encoder",
}
_PERCENT = ("iou_r", "iou_r_rest", "iou_f")
_LABELS = {
    "original": "before",
    "pour-p-keep": "POUR-P, logit kept",
    "pour-p": "POUR-P, logit masked",
    "pour-p-centered": "POUR-P, centred rows, logit kept",
}
_EMPTY = "–"  # noqa: RUF001 - the dash of printed tables
_EMPTY_LATEX = "--"
_NOTES = (
    "IoU in percent, the change from before in brackets; the mean over retained classes (r) or that of the forgotten "
    "class (f) on the test images, void left out.",
    "IoU_r counts the forgotten class's pixels as false positives of whatever they become; rest leaves them out.",
    "RUS(o), encoder: of the features before the projector, which POUR-P does not change.",
)
_PAPER_NOTE = "POUR on Pascal VOC 2012, DeepLabV3+ with ResNet-101."
_PAPER_DATA = "voc2012"
_ELSEWHERE = "The network, data and image size differ, so the changes compare, not the values."


@dataclass(frozen=True, kw_only=True)
class SceneLine:
    """One method on one forgotten class, means over seeds."""

    forgotten: str
    row: str
    label: str
    values: dict[str, float]
    """By column: IoU in percent, similarities as they are."""
    changes: dict[str, float]
    """IoU less that of the original, in points."""
    seeds: int
    failed: str | None = None
    note: str = ""
    """Where the method's options come from, or the paper's values."""
    published: bool = False


def is_scene_store(out: str | Path) -> bool:
    """Whether a folder holds results of :func:`pour.bench.segmentation.run_scenes`."""
    experiment = load_store(out).experiment
    return experiment is not None and experiment.layout == "classes"


def scene_lines(out: str | Path, *, against: Literal["paper"] | None = None) -> list[SceneLine]:
    """Read a store into lines, class by class, the original first.

    Args:
        out: the store.
        against: "paper" adds the paper's lines, of its own classes, at the end.
    """
    folder = Path(out)
    store = load_store(folder)
    cells = store.cells
    if not cells:
        raise UsageError(f"{folder} holds no whole cell; run pour bench --out {folder} first.")
    check_unmixed(cells)
    for sentence in damage_notes(store):
        warnings.warn(sentence, stacklevel=2)
    experiment = store.experiment
    order = [row.name for row in (experiment.rows if experiment else ())]
    asked = list(experiment.forget if experiment else ())
    by_class: dict[tuple[int, ...], dict[str, list[Cell]]] = {}
    for cell in cells:
        by_class.setdefault(cell.key.forget, {}).setdefault(cell.key.row, []).append(cell)
    names = sorted(by_class, key=lambda name: asked.index(name) if name in asked else len(asked))
    lines = []
    for name in names:
        before = {cell.key.seed: cell for cell in by_class[name].get("original", [])}
        rows = sorted(by_class[name], key=lambda row: order.index(row) if row in order else len(order))
        shown = ", ".join(next(iter(by_class[name].values()))[0].forgotten_names)
        lines += [_line(shown, row, by_class[name][row], before) for row in rows]
    return lines + (_published(cells[0].setup) if against == "paper" else [])


def _line(forgotten: str, row: str, cells: list[Cell], before: dict[int, Cell]) -> SceneLine:
    whole = [cell for cell in cells if cell.failed is None]
    values, changes = {}, {}
    for name in _COLUMNS:
        scale = 100.0 if name in _PERCENT else 1.0
        found = [(cell.key.seed, scale * _number(cell, name)) for cell in whole if name in cell.values]
        if found:
            values[name] = statistics.fmean(value for _, value in found)
        if name not in _PERCENT or row == "original":
            continue
        earlier = [(value, scale * _number(before[seed], name)) for seed, value in found if seed in before]
        if earlier:
            changes[name] = statistics.fmean(after - first for after, first in earlier)
    return SceneLine(
        forgotten=forgotten,
        row=row,
        label=_LABELS.get(row) or label_of(row, cells[0].setup["method"]),
        values=values,
        changes=changes,
        seeds=len(whole),
        failed=next((cell.failed for cell in cells if cell.failed), None),
        note="; ".join(dict.fromkeys(cell.note for cell in cells if cell.note)),
    )


def _number(cell: Cell, name: str) -> float:
    return cell.values[name].value


@cache
def _printed() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("published_scenes.json").read_text(encoding="utf-8"))
    return found


def _published(setup: Mapping[str, Any]) -> list[SceneLine]:
    note = _PAPER_NOTE if setup["dataset"] == _PAPER_DATA else f"{_PAPER_NOTE} {_ELSEWHERE}"
    lines = []
    for name, row in _printed()["classes"].items():
        values = {"iou_r": row["iou_r_after"], "iou_f": row["iou_f_after"]}
        changes = {"iou_r": row["iou_r_after"] - row["iou_r_before"], "iou_f": row["iou_f_after"] - row["iou_f_before"]}
        lines.append(
            SceneLine(
                forgotten=name,
                row="paper",
                label="paper",
                values=values,
                changes=changes,
                seeds=1,
                note=note,
                published=True,
            )
        )
    return lines


def _cells(line: SceneLine, *, change: bool = True) -> list[str]:
    shown = []
    for name in _COLUMNS:
        if name not in line.values:
            shown.append(_EMPTY)
        elif name in _PERCENT:
            extra = f" ({line.changes[name]:+.2f})" if change and name in line.changes else ""
            shown.append(f"{line.values[name]:.2f}{extra}")
        else:
            shown.append(f"{line.values[name]:.2f}")
    return shown


def scene_table(lines: Sequence[SceneLine], *, title: str | None = None) -> Table:
    """The lines as a rich table."""
    table = Table(
        title=None if title is None else Text(title),
        caption=Text("\n".join(_notes(lines))),
        caption_justify="left",
        title_justify="left",
    )
    table.add_column("forgotten", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for label in _COLUMNS.values():
        table.add_column(label, justify="right", no_wrap=True)
    previous = None
    for line in lines:
        if previous is not None and previous != line.forgotten:
            table.add_section()
        table.add_row(Text(line.forgotten if line.forgotten != previous else ""), Text(line.label), *_cells(line))
        previous = line.forgotten
    return table


def _notes(lines: Sequence[SceneLine]) -> list[str]:
    # A row has the same note for every class.
    said = dict.fromkeys(f"{line.label}: {line.note.removesuffix('.')}." for line in lines if line.note)
    failed = [f"{line.label} on {line.forgotten} failed: {line.failed}" for line in lines if line.failed]
    return [*_NOTES, *said, *failed]


def render_scenes(lines: Sequence[SceneLine], format: Format) -> str:
    """The text of the table: markdown, latex, csv, or rich."""
    header = ["forgotten", "method", *_COLUMNS.values()]
    rows = [[line.forgotten, line.label, *_cells(line)] for line in lines]
    if format == "markdown":
        ruler = ["---", "---", *("--:" for _ in _COLUMNS)]
        table = "\n".join("| " + " | ".join(row) + " |" for row in (header, ruler, *rows))
        return "\n".join([table, "", *(f"{note}  " for note in _notes(lines))]).rstrip() + "\n"
    if format == "latex":
        texts = [[_EMPTY_LATEX if cell == _EMPTY else latex_text(cell) for cell in row] for row in rows]
        body = "\n".join(" & ".join(row) + r" \\" for row in texts)
        head = " & ".join(map(latex_text, header)) + r" \\"
        columns = "ll" + "r" * len(_COLUMNS)
        rules = f"\\toprule\n{head}\n\\midrule\n{body}\n\\bottomrule"
        notes = "".join(f"% {note}\n" for note in _notes(lines))
        return f"\\begin{{tabular}}{{{columns}}}\n{rules}\n\\end{{tabular}}\n{notes}"
    if format == "csv":
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["forgotten", "row", *_COLUMNS, *(f"{name}_change" for name in _PERCENT)])
        for line in lines:
            numbers = [*(line.values.get(name) for name in _COLUMNS), *(line.changes.get(name) for name in _PERCENT)]
            writer.writerow(
                [line.forgotten, line.row, *("" if number is None else f"{number:.4f}" for number in numbers)]
            )
        return stream.getvalue()
    if format == "rich":
        from rich.console import Console

        stream = io.StringIO()
        Console(file=stream, width=180).print(scene_table(lines))
        return stream.getvalue()
    raise UsageError(f"The format must be one of {', '.join(get_args(Format))}, but is {format!r}.")
