"""The result store: one sealed JSON file to a cell."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import write_text
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "CELLS",
    "Cell",
    "CellKey",
    "cell_files",
    "damage",
    "damaged_cells",
    "forget_name",
    "read_cell",
    "read_store",
    "seal",
    "unseal",
    "write_cell",
]

SCHEMA = 1
CELLS = "cells"


@dataclass(frozen=True, order=True)
class CellKey:
    """Which cell of the grid.

    Example:
        >>> CellKey((0, 3), 1, "delete-common").path.as_posix()
        'cells/forget-0-3/seed-1/delete-common.json'
    """

    forget: tuple[int, ...]
    seed: int
    row: str

    @property
    def path(self) -> Path:
        """Where the store keeps it."""
        return Path(CELLS) / forget_name(self.forget) / f"seed-{self.seed}" / f"{self.row}.json"


def forget_name(forget: tuple[int, ...]) -> str:
    """How files call a request to forget."""
    return "forget-" + "-".join(map(str, forget))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one row gave for one seed and one request, and all that is needed to repeat it.

    Nothing in it differs from run to run on a CPU; times, host, device and date are in the file beside it.
    """

    setup: Mapping[str, Any]
    """Dataset, architecture, recipe, forgotten classes, seed, row, method, setting and all options."""
    models: Mapping[str, str]
    """SHA-256 of the weights: original, retrained, ceiling and unlearned."""
    data: str
    """SHA-256 of the training and test images and labels."""
    precision: str
    versions: Mapping[str, str]
    family: str
    needs: tuple[str, ...] = ()
    """The data that the method reads."""
    note: str = ""
    """Where the options come from."""
    tuned_on: tuple[int, ...] = ()
    """The classes that tuning forgot when it chose the options."""
    tuned_with: int | None = None
    """The seed of that tuning."""
    forgotten_names: tuple[str, ...] = ()
    failed: str | None = None
    """Why there are no values: the sentence of the divergence guard, of the method or of the audit."""
    warnings: tuple[str, ...] = ()
    """What the method said."""
    rate_factor: float = 1.0
    """What the learning rates of the setup were multiplied with, because the method diverged at them."""
    steps: int = 0
    weight_change: float | None = None
    """|theta' - theta| / |theta| over all weights."""
    values: Mapping[str, Mapping[str, float | int | None]] = field(default_factory=dict)
    """Every line of the audit by name: value, 95 % interval, debiased value and number of images."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    discrepancies: tuple[Mapping[str, Any], ...] = ()
    """Distances to the retrained model with their terms."""
    collapse: Mapping[str, float] = field(default_factory=dict)
    answers: tuple[int, ...] = ()
    """How often each class is the answer on the forgotten classes' test images."""

    @property
    def key(self) -> CellKey:
        """Its place in the grid."""
        return CellKey(tuple(self.setup["forgotten"]), self.setup["seed"], self.setup["row"])

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Cell:
        """Read what ``dataclasses.asdict`` wrote."""
        tuples = ("needs", "forgotten_names", "warnings", "discrepancies", "answers", "tuned_on")
        return cls(**{**data, **{name: tuple(data.get(name, ())) for name in tuples}})


def seal(cell: Cell) -> str:
    """The text of a cell's file, with a checksum over its content."""
    content = asdict(cell)
    return (
        json.dumps(
            {"schema": SCHEMA, "sha256": _checksum(content), "cell": content},
            indent=1,
            sort_keys=True,
            allow_nan=False,
        )
        + "\n"
    )


def unseal(text: str) -> Cell | None:
    """The cell in a file's text, or None where it is cut short, altered or of another schema."""
    try:
        stored = json.loads(text)
        if stored["schema"] != SCHEMA or stored["sha256"] != _checksum(stored["cell"]):
            return None
        cell = Cell.from_dict(stored["cell"])
        return cell if _makes_sense(cell) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _makes_sense(cell: Cell) -> bool:
    """Whether everything that readers of a cell ask for is of its kind; a checksum can be made for anything."""
    key, setup = cell.key, cell.setup
    return (
        all(isinstance(label, int) for label in key.forget)
        and isinstance(key.seed, int)
        and isinstance(key.row, str)
        and all(isinstance(setup.get(name), str) for name in ("dataset", "architecture", "setting"))
        and isinstance(setup.get("recipe"), dict | None)
        and "method" in setup
        and isinstance(setup.get("options"), dict)
        and all(isinstance(reading["value"], float | int | None) for reading in cell.values.values())
    )


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_cell(out: Path, key: CellKey) -> Cell | None:
    """A cell of the store; None where it is missing, damaged or in another cell's place."""
    try:
        cell = unseal((out / key.path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return cell if cell is not None and cell.key == key else None


def write_cell(out: Path, cell: Cell, run: Mapping[str, Any], report: str | None) -> None:
    """Keep a cell; its own file comes last, so that whatever is beside it is there when it is."""
    path = out / cell.key.path
    if report is None:
        # That of an earlier try would stand beside a cell that failed.
        path.with_suffix(".report.json").unlink(missing_ok=True)
    else:
        write_text(path.with_suffix(".report.json"), report)
    write_text(path.with_suffix(".run.json"), json.dumps(run, indent=1, sort_keys=True) + "\n")
    write_text(path, seal(cell))


def cell_files(out: Path) -> list[Path]:
    """The files of all cells, without what lies beside them."""
    found = sorted((out / CELLS).glob("forget-*/seed-*/*.json"))
    return [path for path in found if not path.name.endswith((".run.json", ".report.json"))]


def read_store(out: str | Path) -> list[Cell]:
    """Every whole cell of a store; damaged ones count as absent, as they do for :func:`run_experiment`."""
    folder = Path(out)
    if not (folder / CELLS).is_dir():
        raise UsageError(f"{folder} holds no results; run pour bench --out {folder} first.")
    return [cell for cell in _contents(folder).values() if cell is not None]


def damaged_cells(out: str | Path) -> list[str]:
    """The files of cells that were cut short, altered or moved, by their place in the store."""
    folder = Path(out)
    return [path.relative_to(folder).as_posix() for path, cell in _contents(folder).items() if cell is None]


def damage(out: str | Path) -> list[str]:
    """A sentence for the tables of a store that holds damaged cells; none for one that does not."""
    damaged = damaged_cells(out)
    if not damaged:
        return []
    return [f"Damaged cells are left out ({len(damaged)}), such as {damaged[0]}; pour bench makes them anew."]


def _contents(folder: Path) -> dict[Path, Cell | None]:
    """What is in each file of a cell; None where that is not the cell of its place."""
    found: dict[Path, Cell | None] = {}
    for path in cell_files(folder):
        try:
            cell = unseal(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            cell = None
        found[path] = cell if cell is not None and folder / cell.key.path == path else None
    return found
