"""Draw the plots of the results pages from the files under results/ (make results).

    python scripts/plots.py [NAME ...]

Writes ``docs/images/results/NAME.svg``. The same results give the same bytes.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure
from results import rivals

from pour.bench import make_table
from pour.report.figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from matplotlib.axes import Axes

    from pour.bench.table import TableRow

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "results"
# Mid tones, which are readable on the light and on the dark page.
TEXT, MARK, REFERENCE, GREEN = "#7d879c", "#4f7be0", "#d9822b", "#2e9c6a"
STYLE = {
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 9,
}

Point = tuple[str, float, float]
"""Label, value and deviation."""


def dots(points: Sequence[Point], label: str, *, references: Sequence[tuple[str, float]] = (), alt: str) -> Figure:
    """Draw one line per label, with its deviation, and a dashed line for each reference value.

    Args:
        points: Labels with values and deviations, from top to bottom.
        label: Name of the value.
        references: Values to compare with, by name.
        alt: Description of the figure for screen readers.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.6 + 0.26 * len(points) + 0.25 * bool(references)), layout="constrained")
        figure.set_label(alt)
        axes = figure.subplots()
        rows = range(len(points) - 1, -1, -1)
        values = [value for _, value, _ in points]
        axes.errorbar(values, rows, xerr=[std for *_, std in points], fmt="o", color=MARK, capsize=2, ms=4.5, lw=1.3)
        axes.set_yticks(list(rows), [name for name, *_ in points])
        axes.set_ylim(-0.7, len(points) - 0.3)
        for name, value in references:
            axes.axvline(value, color=REFERENCE, lw=1, ls="--")
            axes.text(value, len(points) - 0.2, name, color=REFERENCE, ha="center", va="bottom", fontsize=8)
        _finish(axes, label)
    return figure


def scores(
    store: str, column: str, rows: Sequence[str], *, label: str, references: Sequence[tuple[str, str]] = ()
) -> Figure:
    """Draw a column of a grid for some of its rows.

    Args:
        store: Name of the published file of the experiment.
        column: Key of the column.
        rows: Names of the rows, from top to bottom.
        label: Name of the value.
        references: Names of the lines and the rows that they show.
    """
    table = make_table(ROOT / "results" / f"{store}.json.gz", columns=(column,))
    found = {row.name: row for row in reversed(table.rows) if not row.encoder and column in row.entries}
    points = []
    for name in rows:
        row, entry = found[name], found[name].entries[column]
        points.append((_label(row), entry.mean, entry.std or 0.0))
    lines = [(name, found[row].entries[column].mean) for name, row in references]
    return dots(points, label, references=lines, alt=f"{label} of {len(points)} methods on {store}")


def compare(groups: Mapping[str, Mapping[str, tuple[float, float]]], label: str, *, alt: str) -> Figure:
    """Draw one line per name with one mark per group.

    Args:
        groups: Values and deviations by name, by group. The first group sets the names, from top to bottom.
        label: Name of the value.
        alt: Description of the figure for screen readers.
    """
    names = list(next(iter(groups.values())))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 0.7 + 0.29 * len(names)), layout="constrained")
        figure.set_label(alt)
        axes = figure.subplots()
        for (group, values), colour, shape in zip(groups.items(), (MARK, REFERENCE, GREEN), "osD", strict=False):
            rows = [len(names) - 1 - names.index(name) for name in values]
            means, stds = zip(*values.values(), strict=True)
            axes.errorbar(means, rows, xerr=stds, fmt=shape, color=colour, ms=4.5, lw=1.1, capsize=2, label=group)
        axes.set_yticks(range(len(names) - 1, -1, -1), names)
        _finish(axes, label)
        axes.legend(frameon=False, fontsize=8.5, loc="best")
    return figure


def column(store: str, key: str, rows: Sequence[str], *, by_class: bool = False) -> dict[str, tuple[float, float]]:
    """Return mean and deviation of a column by the label of its row.

    Args:
        store: Name of the published file of the experiment.
        key: Key of the column; with ``by_class`` as the table of classes has it.
        rows: Names of the rows.
        by_class: Read the table of classes.
    """
    table = make_table(ROOT / "results" / f"{store}.json.gz", columns=(key.partition(".")[0],), by_class=by_class)
    found = {row.name: row for row in reversed(table.rows) if not row.encoder and key in row.entries}
    return {
        _label(found[row]): (found[row].entries[key].mean, found[row].entries[key].std or 0.0)
        for row in rows
        if row in found
    }


def classes() -> Figure:
    """Draw RUS(r) of some methods for each class of CIFAR-10 that was forgotten."""
    names = (
        "ceiling", "fcs-tuned", "projun", "ssd", "pour-p-decisions", "pour-d-default", "delete-tuned", "pour-p",
        "original",
    )  # fmt: skip
    table = make_table(ROOT / "results" / "cifar10.json.gz", columns=("rus_r",), by_class=True)
    keys = {column.label.partition(", ")[2]: column.key for column in table.columns}
    groups = {group: column("cifar10", key, names, by_class=True) for group, key in keys.items()}
    return compare(groups, "RUS(r), three seeds per class", alt="RUS(r) of nine methods on three classes of CIFAR-10")


def cifar100() -> Figure:
    """Draw RUS(r) on CIFAR-100 for networks of both lengths."""
    names = (
        "ceiling", "duck-tuned", "projun", "fcs-tuned", "delete-tuned", "gradient-ascent-tuned", "random-label-tuned",
        "pour-d-default", "pour-p", "masked-head", "original",
    )  # fmt: skip
    stores = {"200 epochs": "cifar100", "60 epochs": "cifar100-fast"}
    groups = {label: column(store, "rus_r", names) for label, store in stores.items()}
    return compare(groups, "RUS(r), apple forgotten", alt="RUS(r) of eleven methods on CIFAR-100 for two recipes")


def pathmnist() -> Figure:
    """Draw AUS on the images of both clinics."""
    names = (
        "fcs-tuned", "delete-tuned", "pour-p", "masked-head", "pour-d-tuned", "esc", "gradient-ascent-tuned",
        "boundary-shrink-tuned", "finetune-tuned", "boundary-expand-tuned", "random-label-tuned", "original",
    )  # fmt: skip
    groups = {
        label: column("pathmnist", key, names)
        for label, key in (("same clinic", "aus"), ("other clinic", "aus_external"))
    }
    return compare(groups, "AUS, adipose forgotten, three seeds", alt="AUS of twelve methods on images of two clinics")


def camvid() -> Figure:
    """Draw the remaining accuracy of each class of CamVid, by method."""
    table = make_table(ROOT / "results" / "camvid.json.gz")
    found = {row.name: row for row in reversed(table.rows) if not row.encoder}
    kinds = {"pour-p-keep": "POUR-P, score kept", "pour-p": "POUR-P, masked", "pour-d": "POUR-D"}
    groups = {
        label: {
            name: (found[f"{name}-{kind}"].entries["iou_f"].mean, 0.0)
            for name in ("Car", "Pedestrian", "Bicyclist", "Fence", "Pole")
        }
        for kind, label in kinds.items()
    }
    return compare(groups, "IoU of the forgotten class in percent", alt="IoU that is left of five classes of CamVid")


def first_call() -> Figure:
    """Draw the accuracy that each method leaves on the class, on six small networks."""
    rows = json.loads((ROOT / "src" / "pour" / "unlearning" / "first_call.json").read_text())["methods"]
    left = {name: row for name, row in rows.items() if row.get("acc_f") is not None}
    points = [(name, left[name]["acc_f"], 0.0) for name in sorted(left, key=lambda name: (left[name]["acc_f"], name))]
    return dots(points, "Acc_f in percent, mean over six networks", alt="Accuracy that each method leaves on the class")


def speed() -> Figure:
    """Draw how many times as long each rival takes."""
    points = [(f"{operation.partition(',')[0]}: {rival}", ratio, 0.0) for operation, rival, ratio in rivals()]
    figure = dots(points, "time over the time of pour", alt="Time of each rival over the time of pour")
    figure.axes[0].set_xscale("log")
    figure.axes[0].set_xlim(1, 300)
    return figure


def rates() -> Figure:
    """Draw RUS(o) of POUR-D against its learning rate."""
    rows = json.loads((ROOT / "results" / "methods" / "pour-d-cifar10-h200.json").read_text())["rows"]
    groups: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["method"] == "pour-d" and "failed" not in row:
            group = f"{row['schedule']}, {row['steps']} steps, BatchNorm {row['batch_norm']}"
            groups.setdefault(group, []).append((row["factor"], row["rus_o"]))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        figure.set_label("RUS(o) of POUR-D against its learning rate")
        axes = figure.subplots()
        for (group, points), colour in zip(
            groups.items(), cycle((MARK, "#2e9c6a", "#9a62c9", "#c94f6d", TEXT)), strict=False
        ):
            axes.plot(*zip(*sorted(points), strict=True), marker="o", ms=4, lw=1.3, color=colour, label=group)
        axes.axhline(0.85, color=REFERENCE, lw=1, ls="--")
        axes.text(1, 0.86, "printed in the paper", color=REFERENCE, fontsize=8, va="bottom")
        axes.set_xscale("log")
        axes.set_ylim(0.35, 0.95)
        axes.set_ylabel("RUS(o)")
        _finish(axes, "learning rate, times the default")
        axes.legend(frameon=False, fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def repeated() -> Figure:
    """Draw Acc_f of each row of CIFAR-10 in the first and in the second run."""
    tables = [
        make_table(ROOT / "results" / f"{name}.json.gz", columns=("acc_f",)) for name in ("cifar10-earlier", "cifar10")
    ]
    first, second = ({row.name: row for row in reversed(table.rows) if not row.encoder} for table in tables)
    names = [name for name in first if name in second]
    pairs = [(first[name].entries["acc_f"].mean, second[name].entries["acc_f"].mean, name) for name in names]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 4.2), layout="constrained")
        figure.set_label("Acc_f of each row in two runs of the CIFAR-10 grid")
        axes = figure.subplots()
        axes.plot([0, 100], [0, 100], color=REFERENCE, lw=1, ls="--")
        axes.scatter([pair[0] for pair in pairs], [pair[1] for pair in pairs], s=18, color=MARK, alpha=0.75)
        for before, after, name in pairs:
            if abs(before - after) > 8:
                row = second[name]
                text = _label(row)
                axes.annotate(text, (before, after), xytext=(5, 3), textcoords="offset points", fontsize=8)
        axes.set_ylabel("Acc_f in percent, second run")
        _finish(axes, "Acc_f in percent, first run")
    return figure


def _label(row: TableRow) -> str:
    return f"{row.label}, {row.setting}" if row.setting else row.label


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=TEXT, alpha=0.25, lw=0.6)


PLOTS: dict[str, Callable[[], Figure]] = {
    "cifar10": partial(
        scores,
        "cifar10",
        "rus_r",
        (
            "l1-sparse-tuned",
            "finetune-tuned",
            "fcs-tuned",
            "pour-d-tuned",
            "projun",
            "duck-tuned",
            "pour-p-decisions",
            "delete-tuned",
            "pour-p",
            "scrub-tuned",
            "neggrad-plus-tuned",
            "salun-tuned",
            "gradient-ascent-tuned",
            "masked-head",
            "boundary-shrink-tuned",
            "sure-tuned",
            "random-label-tuned",
        ),
        label="RUS(r), CIFAR-10 without airplane, three seeds",
        references=(("original", "original"), ("second retrained model", "ceiling")),
    ),
    "other-classes": classes,
    "rus-o": rates,
    "repeat": repeated,
    "cifar100": cifar100,
    "pathmnist": pathmnist,
    "camvid": camvid,
    "first-call": first_call,
    "speed": speed,
}


def main() -> None:
    """Draw the plots of the command line, by default all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", choices=[[], *PLOTS])
    names = parser.parse_args().names or list(PLOTS)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in names:
        save_figure(PLOTS[name](), FOLDER / f"{name}.svg")


if __name__ == "__main__":
    main()
