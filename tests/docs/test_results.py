"""The tables, CSV files and plots of the pages are made from the files under results/, and describe pour of today."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_modules import script

from pour.bench import get_experiment, read_store

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_tables_of_all_pages_are_made_from_the_results() -> None:
    outdated = [
        str(path.relative_to(ROOT))
        for path, text in script("results").files().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]
    assert not outdated, "run make results"


def test_every_plot_of_the_pages_exists() -> None:
    plots = script("plots")
    assert {path.stem for path in plots.FOLDER.glob("*.svg")} == set(plots.PLOTS)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_what_the_tables_call_tuned_or_default_is_what_pour_does_today(name: str) -> None:
    """A default that changes, or a new tuning, takes its row away from the numbers that the pages show."""
    rows = {row.name: row.resolved() for row in get_experiment(name).rows if row.method is not None}
    cells = [cell for cell in read_store(ROOT / "results" / f"{name}.json.gz") if cell.key.row in rows]
    assert len(cells) > 100
    for cell in cells:
        assert cell.setup["options"] == rows[cell.key.row], f"{cell.key.row} of results/{name} is to be run again"
