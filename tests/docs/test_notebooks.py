"""The notebooks execute from an empty folder, and are stored with their outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
from script_modules import script

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = sorted((ROOT / "notebooks").glob("*.py"))


def test_there_are_four_notebooks() -> None:
    assert len(SOURCES) == 4
    assert all(source.with_suffix(".ipynb").is_file() for source in SOURCES)


@pytest.mark.slow
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_a_notebook_executes_and_is_stored_with_its_outputs(source: Path) -> None:
    notebooks = script("notebooks")
    executed = notebooks.execute(source)
    assert sum(bool(cell.get("outputs")) for cell in executed.cells) >= 2
    assert not notebooks.problems(source, executed)
