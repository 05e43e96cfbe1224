"""Draw the plots of the results pages from the files under results/ (make results).

    python scripts/plots.py [NAME ...]

Writes ``docs/images/results/NAME.svg``. The same results give the same bytes.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from pour.bench import make_table
from pour.report.figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "images" / "results"
# Mid tones, which are readable on the light and on the dark page.
TEXT, MARK, REFERENCE = "#7d879c", "#4f7be0", "#d9822b"
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
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", color=TEXT, alpha=0.25, lw=0.6)
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
        points.append((f"{row.label}, {row.setting}" if row.setting else row.label, entry.mean, entry.std or 0.0))
    lines = [(name, found[row].entries[column].mean) for name, row in references]
    return dots(points, label, references=lines, alt=f"{label} of {len(points)} methods on {store}")


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
