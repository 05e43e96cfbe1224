"""The page of a benchmark: every method on every setting in one table that sorts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import write_text
from pour._version import __version__
from pour.errors import UsageError
from pour.report.page.definitions import DEFINITIONS, SYMBOLS, base_name, definitions_of, title_of
from pour.report.page.rendering import render

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from pour.report.page.sections import FigureSection

__all__ = ["BenchmarkRow", "Score", "write_benchmark_page"]


@dataclass(frozen=True, kw_only=True)
class Score:
    """One number of a table: a mean over seeds with its spread, and the paper's where it has one."""

    value: float
    spread: float | None = None
    """Standard deviation over seeds."""
    n: int | None = None
    """Seeds."""
    published: float | None = None
    """The paper's number."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRow:
    """One method on one setting."""

    method: str
    setting: str
    scores: Mapping[str, Score]
    """By metric; what is missing shows as a dash."""
    access: str = ""
    """The data that the method needs."""
    report: str | None = None
    """A page of this run, as a path relative to the benchmark's page."""

    def __post_init__(self) -> None:
        if self.report is not None and (self.report.startswith(("/", "\\")) or ":" in self.report):
            raise UsageError(f"The report of a row must be a relative path, not {self.report!r}.")


def write_benchmark_page(
    rows: Sequence[BenchmarkRow],
    path: str | os.PathLike[str],
    *,
    title: str,
    notes: Sequence[str] = (),
    figures: Sequence[FigureSection] = (),
    command: str | None = None,
) -> Path:
    """Write the results of a benchmark as one self-contained HTML file; the best of each setting stands out.

    Args:
        rows: in the order in which they are shown first.
        path: where the page goes.
        title: the headline.
        notes: sentences under it.
        figures: drawings under the table.
        command: the exact command that repeats it.

    Example:
        >>> import tempfile
        >>> rows = [BenchmarkRow(method="pour-d", setting="digits, 3", scores={"acc_r": Score(value=0.97)})]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     "0.970" in write_benchmark_page(rows, f"{folder}/b.html", title="Digits").read_text(encoding="utf-8")
        True
    """
    if not rows:
        raise UsageError("A benchmark page needs at least one row; run the benchmark first.")
    names = list(dict.fromkeys(name for row in rows for name in row.scores))
    context: dict[str, Any] = {
        "title": title,
        "rows": rows,
        "names": names,
        "titles": _short_titles(names),
        "seeds": _usual_seeds(rows),
        "arrows": {name: _arrow(name) for name in names},
        "best": _best(rows, names),
        "settings": list(dict.fromkeys(row.setting for row in rows)),
        "notes": notes,
        "figures": [[figure] for figure in figures],
        "definitions": definitions_of(names),
        "symbols": SYMBOLS,
        "command": command,
        "version": __version__,
    }
    write_text(path, render("benchmark.html.j2", scripts=("page.js",), **context))
    return Path(path)


def _short_titles(names: Sequence[str]) -> dict[str, str]:
    """Titles up to the comma, where that is enough to tell the metrics apart."""
    full = {name: title_of(name) for name in names}
    short = Counter(title.partition(",")[0] for title in full.values())
    heads = {name: title.partition(",")[0] for name, title in full.items()}
    return {name: heads[name] if short[heads[name]] == 1 else full[name] for name in names}


def _usual_seeds(rows: Sequence[BenchmarkRow]) -> int | None:
    """The number of seeds that most scores are of; a score of fewer says so."""
    counts = Counter(score.n for row in rows for score in row.scores.values() if score.n is not None)
    return counts.most_common(1)[0][0] if counts else None


def _arrow(name: str) -> str:
    base = base_name(name)
    return "" if base is None else {"higher": "↑", "lower": "↓", "as retrained": ""}[DEFINITIONS[base].better]


def _best(rows: Sequence[BenchmarkRow], names: Sequence[str]) -> set[tuple[int, str]]:
    """Which cells hold the best value of their setting, ties included; metrics without a direction have none."""
    best: set[tuple[int, str]] = set()
    for name in names:
        arrow = _arrow(name)
        if not arrow:
            continue
        by_setting: dict[str, list[tuple[float, int]]] = {}
        for index, row in enumerate(rows):
            if name in row.scores:
                by_setting.setdefault(row.setting, []).append((row.scores[name].value, index))
        for found in by_setting.values():
            values = [value for value, _ in found]
            top = max(values) if arrow == "↑" else min(values)
            best |= {(index, name) for value, index in found if value == top and len(found) > 1}
    return best
