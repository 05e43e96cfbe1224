"""The result store: one sealed JSON file to a cell, and a plan of which cells are still good."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pour._files import write_text
from pour.bench.experiments import START
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pour.bench.experiments import Experiment

__all__ = [
    "Cell",
    "CellKey",
    "check_unmixed",
    "read_cell",
    "read_experiment",
    "read_store",
    "seal",
    "unseal",
]

SCHEMA = 1
EXPERIMENT_FILE = "experiment.json"
CELLS = "cells"
# What decides how the models of a store came about.
_OF_ALL_CELLS = ("dataset", "architecture", "recipe", *START)
Key = TypeVar("Key")


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
        tuples = ("needs", "forgotten_names", "warnings", "discrepancies", "answers")
        return cls(**{**data, **{name: tuple(data[name]) for name in tuples}})


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
        return Cell.from_dict(stored["cell"])
    except (ValueError, KeyError, TypeError):
        return None


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
    if report is not None:
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
    cells: list[Cell] = []
    for path in cell_files(folder):
        try:
            cell = unseal(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue
        if cell is not None and folder / cell.key.path == path:
            cells.append(cell)
    return cells


def check_unmixed(cells: Iterable[Cell], settings: Sequence[str] = ()) -> None:
    """Raise where cells cannot stand in one table.

    Those of one seed must have been measured against the same models, all on the same images with networks of one kind,
    trained in one way and run in one precision, and each row with the same options for every seed.

    Args:
        cells: of a store.
        settings: further entries of their setup that must agree.
    """
    models: dict[tuple[str, int, tuple[int, ...]], set[str]] = defaultdict(set)
    kinds: dict[str, set[str]] = defaultdict(set)
    measured: dict[str, set[str]] = defaultdict(set)
    options: dict[str, set[str]] = defaultdict(set)
    for cell in cells:
        for role in ("original", "retrained", "ceiling"):
            if role in cell.models:
                models[role, cell.key.seed, () if role == "original" else cell.key.forget].add(cell.models[role])
        for name in _OF_ALL_CELLS:
            kinds[name].add(_text(cell.setup.get(name)))
        kinds["precision"].add(cell.precision)
        measured["images"].add(cell.data)
        for name in settings:
            measured[name].add(_text(cell.setup.get(name)))
        options[cell.key.row].add(_text(cell.setup.get("options")))
    if kind := _mixed(kinds):
        raise UsageError(
            f"The cells of this store differ in their {kind.replace('_', ' ')}; keep each kind in its own folder."
        )
    redo = "run pour bench on this store, which redoes those that do not match"
    if what := _mixed(measured):
        raise UsageError(f"The cells of this store differ in their {what}; {redo}.")
    if row := _mixed(options):
        raise UsageError(f"The cells of {row} have different options; {redo}.")
    if found := _mixed(models):
        role, seed, _ = found
        raise UsageError(f"The cells of seed {seed} belong to {len(models[found])} different {role} models; {redo}.")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _mixed(values: Mapping[Key, set[str]]) -> Key | None:
    """The first of ``values`` that has more than one."""
    return next((key for key, found in values.items() if len(found) > 1), None)


def read_experiment(out: Path) -> dict[str, Any] | None:
    """What the store says of its experiment, or None where there is no readable file."""
    try:
        found = json.loads((out / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "name" in found else None


def write_experiment(out: Path, experiment: Experiment) -> None:
    """Say whose results the store holds; a store of another experiment is refused."""
    known = read_experiment(out)
    if known is not None and known["name"] != experiment.name:
        raise UsageError(f"{out} holds results of {known['name']}, not of {experiment.name}; give another folder.")
    text = json.dumps(experiment.to_dict(), indent=1, sort_keys=True) + "\n"
    asked = json.loads(text)
    other = [name for name in _OF_ALL_CELLS if known is not None and known.get(name) != asked.get(name)]
    if known is not None and other:
        raise UsageError(
            f"{out} holds results of {experiment.name} with another {other[0].replace('_', ' ')} "
            f"({_brief(known.get(other[0]))}, not {_brief(asked.get(other[0]))}); give another folder."
        )
    if known is None or (out / EXPERIMENT_FILE).read_text(encoding="utf-8") != text:
        write_text(out / EXPERIMENT_FILE, text)


def _brief(value: Any) -> str:
    """A recipe by its name and length, anything else as it is."""
    if isinstance(value, dict):
        return f"{value.get('name')} of {value.get('epochs') or value.get('steps')}"
    return str(value)
