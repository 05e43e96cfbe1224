"""Tables, CSV files and plots of the pages are those of `results/`, and the results are those of today's options."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command_line import succeed
from script_modules import script

from pour.bench import get_experiment, read_store
from pour.report.figures import save_figure

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def files() -> dict[Path, str]:
    """Pages with tables, and CSV files of the tables, as the results are today."""
    found: dict[Path, str] = script("results").files()
    return found


def test_tables_and_csv_files_are_current(files: dict[Path, str]) -> None:
    assert sum(path.suffix == ".csv" for path in files) >= 10
    for path, text in files.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.relative_to(ROOT)} is out of date: run make results"


def test_every_csv_file_and_every_link_to_one_has_a_table(files: dict[Path, str]) -> None:
    for path in (ROOT / "docs" / "results").glob("*.csv"):
        assert path in files, f"no script writes {path.name}"
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "results").glob("*.md"))
    for name in re.findall(r"\]\(([^)]+\.csv)\)", pages):
        assert ROOT / "docs" / "results" / name in files


def test_plots_are_current(tmp_path: Path) -> None:
    """The marks have the same places. Another release of matplotlib moves them by less than two points."""
    plots = script("plots")
    assert {path.stem for path in plots.FOLDER.glob("*.svg")} == set(plots.PLOTS)
    for name, draw in plots.PLOTS.items():
        save_figure(draw(), tmp_path / "plot.svg")
        stored, drawn = (_marks(path) for path in (plots.FOLDER / f"{name}.svg", tmp_path / "plot.svg"))
        assert stored.shape == drawn.shape, f"{name}.svg is out of date: run make results"
        np.testing.assert_allclose(stored, drawn, atol=2, err_msg=f"{name}.svg is out of date: run make results")


def _marks(path: Path) -> np.ndarray:
    """Return the places of the marks of a plot, (n, 2)."""
    found = re.findall(r'<use [^>]*x="([\d.-]+)" y="([\d.-]+)"', path.read_text(encoding="utf-8"))
    assert found
    return np.array(found, dtype=float)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_published_rows_have_the_options_of_today(name: str) -> None:
    """If a default or a tuned option changes, its row must be run again."""
    rows = {row.name: row.resolved() for row in get_experiment(name).rows if row.method is not None}
    cells = [cell for cell in read_store(ROOT / "results" / f"{name}.json.gz") if cell.key.row in rows]
    assert len(cells) > 100
    for cell in cells:
        assert cell.setup["options"] == rows[cell.key.row], f"{cell.key.row} of results/{name} is to be run again"


def test_the_demo_describes_itself() -> None:
    assert "digit" in succeed("demo", "--help").stdout
