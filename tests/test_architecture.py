"""The rooms of docs/project/architecture.md, and the order in which they import each other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from script_modules import script

from pour.training import list_tasks

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "pour"
PAGE = (ROOT / "docs" / "project" / "architecture.md").read_text(encoding="utf-8")
DIAGRAMS = "".join(file.read_text("utf-8") for file in sorted((ROOT / "docs" / "images" / "diagrams").glob("*.txt")))
ROOMS = re.findall(r"^\| `(\w+)` \|", PAGE, flags=re.MULTILINE)


def imported_rooms(source: str) -> list[tuple[int, str]]:
    """Return the line and the room of every import of pour in ``source``."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "pour":
            modules = [f"pour.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules = [node.module]
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        else:
            continue
        parts = [module.split(".") for module in modules]
        found += [(node.lineno, part[1]) for part in parts if part[0] == "pour" and part[1:2] and part[1] in ROOMS]
    return found


def test_the_page_names_every_room() -> None:
    assert sorted(ROOMS) == sorted(file.parent.name for file in SOURCE.glob("*/__init__.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_from_rooms_above_it(room: str) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    assert files
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {other}"
        for file in files
        for line, other in imported_rooms(file.read_text(encoding="utf-8"))
        if ROOMS.index(other) > ROOMS.index(room)
    ]
    assert not wrong


def test_an_import_against_the_order_is_found() -> None:
    source = "import torch\nfrom pour import bench\ndef f():\n import pour.cli.flags\n from pour.data import Splits\n"
    assert imported_rooms(source) == [(2, "bench"), (4, "cli"), (5, "data")]


def kinds_asked(source: str) -> list[str]:
    """Return the imports of one task's own modules, and the comparisons with the name of a task."""
    own = "pour.data.scenes", "pour.data.formats.scenes", "pour.training.tasks.segment", "pour.training.tasks.match"
    hits = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in own:
            hits.append(f"{node.lineno} imports {node.module}")
        if isinstance(node, ast.Compare):
            names = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
            hits += [f"{node.lineno} compares with {name!r}" for name in names if name in list_tasks()]
    return hits


@pytest.mark.parametrize("room", ["methods", "auditing", "bench", "cli"])
def test_a_room_asks_no_experiment_for_its_kind(room: str) -> None:
    files = sorted((SOURCE / room).rglob("*.py"))
    wrong = [f"{file.relative_to(ROOT)}:{hit}" for file in files for hit in kinds_asked(file.read_text("utf-8"))]
    assert not wrong


def test_a_question_for_the_kind_is_found() -> None:
    assert kinds_asked("from pour.data.scenes import Scenes\nif task.name in ('segment', 'x'):\n pass\n") == [
        "1 imports pour.data.scenes",
        "2 compares with 'segment'",
    ]


def test_every_file_that_the_page_names_exists() -> None:
    paths = re.findall(rf"\b((?:{'|'.join(ROOMS)})/[\w/]+\.py)", PAGE + DIAGRAMS)
    assert len(set(paths)) > 30
    assert not [path for path in paths if not (SOURCE / path).exists()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forget", "unlearn", "audit", "bench"])
def test_the_page_has_the_number_of_files_of_a_journey(name: str) -> None:
    (written,) = re.findall(rf"^\| {name} \| (\d+) \|", PAGE, flags=re.MULTILINE)
    assert script("journeys").count(name) == pytest.approx(int(written), abs=3), "run python scripts/journeys.py"


def test_a_method_is_a_file_of_its_name() -> None:
    """The registry imports the module of a method by the method's name."""
    from pour.unlearning import get_method

    for file in sorted((SOURCE / "methods").glob("[!_]*.py")):
        name = file.stem.replace("_", "-")
        assert get_method(name).name == name
        assert get_method(name).__module__ == f"pour.methods.{file.stem}"
