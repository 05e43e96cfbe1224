"""The result store: one sealed JSON file to a cell, and a plan of which cells are still good."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

from pour._files import write_text
from pour.bench.experiments import START
from pour.errors import UsageError
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pour.bench.experiments import Experiment

__all__ = [
    "OF_ALL_CELLS",
    "Cell",
    "CellKey",
    "check_folder",
    "check_unmixed",
    "damaged_cells",
    "model_facts",
    "read_cell",
    "read_experiment",
    "read_store",
    "refuse_other",
    "seal",
    "settled_precision",
    "unseal",
]

SCHEMA = 1
EXPERIMENT_FILE = "experiment.json"
CELLS = "cells"
MODELS = "models"
OF_ALL_CELLS = ("dataset", "architecture", "recipe", *START)
"""What decides how the models of a store came about."""
Key = TypeVar("Key")
_DIGEST = re.compile("[0-9a-f]{64}")
_Alike: TypeAlias = "dict[str, list[Cell]]"


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


def check_unmixed(cells: Iterable[Cell], settings: Sequence[str] = ()) -> None:
    """Raise where cells cannot stand in one table.

    Those of one seed must have been measured against the same models, all on the same images with networks of one kind,
    trained in one way and run in one precision, and each row with the same options for every seed.

    Args:
        cells: of a store.
        settings: further entries of their setup that must agree.
    """
    models: dict[tuple[str, int, tuple[int, ...]], _Alike] = defaultdict(lambda: defaultdict(list))
    kinds: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    measured: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    options: dict[str, _Alike] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        for role in ("original", "retrained", "ceiling"):
            if role in cell.models:
                request = () if role == "original" else cell.key.forget
                models[role, cell.key.seed, request][cell.models[role]].append(cell)
        for name in OF_ALL_CELLS:
            kinds[name][_text(cell.setup.get(name))].append(cell)
        kinds["precision"][cell.precision].append(cell)
        measured["images"][cell.data].append(cell)
        for name in settings:
            measured[name][_text(cell.setup.get(name))].append(cell)
        options[cell.key.row][_text(cell.setup.get("options"))].append(cell)
    if kind := _mixed(kinds):
        raise UsageError(
            f"The cells of this store differ in their {kind.replace('_', ' ')}; {_unlike(kinds[kind])}, so keep each "
            "kind in its own folder."
        )
    if what := _mixed(measured):
        raise UsageError(f"The cells of this store differ in their {what}; {_redo(measured[what])}")
    if row := _mixed(options):
        raise UsageError(f"The cells of {row} have different options; {_redo(options[row])}")
    if found := _mixed(models):
        role, seed, _ = found
        raise UsageError(
            f"The cells of seed {seed} belong to {len(models[found])} different {role} models; {_redo(models[found])}"
        )


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _mixed(values: Mapping[Key, _Alike]) -> Key | None:
    """The first of ``values`` that has more than one."""
    return next((key for key, found in values.items() if len(found) > 1), None)


def _unlike(groups: _Alike) -> str:
    """Which cells differ from the others: the smallest of the groups."""
    odd = min(groups.values(), key=len)
    others = sum(map(len, groups.values())) - len(odd)
    rows, seeds = sorted({cell.key.row for cell in odd}), sorted({cell.key.seed for cell in odd})
    classes = dict.fromkeys(" and ".join(_names(cell)) for cell in odd)
    where = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}, class {', '.join(classes)}"
    return f"{', '.join(rows)} ({where}) {'is' if len(odd) == 1 else 'are'} unlike the other {others}"


def _redo(groups: _Alike) -> str:
    """Which cells differ, and what makes them anew; no row, seed or request of theirs may be left out."""
    cells = [cell for group in groups.values() for cell in group]
    seeds = sorted({cell.key.seed for cell in cells})
    classes = dict.fromkeys(_names(cell)[0] for cell in cells if len(cell.key.forget) == 1)
    flags = ["--seeds", ",".join(map(str, seeds)) + "," * (len(seeds) == 1)]
    flags += [part for name in classes for part in ("--forget", name)]
    return (
        f"{_unlike(groups)}, so run pour bench on this store with {shlex.join(flags)} and without --methods, which "
        "redoes those that do not match, and remove cells of rows that the experiment no longer has."
    )


def _names(cell: Cell) -> tuple[str, ...]:
    return cell.forgotten_names or tuple(map(str, cell.key.forget))


def check_folder(out: Path) -> None:
    """Raise where a store cannot be, because there is a file."""
    places = (out, *out.parents, out / CELLS, out / MODELS)
    blocked = next((path for path in places if path.exists() and not path.is_dir()), None)
    if blocked is not None:
        raise UsageError(f"{blocked} is a file; give a folder for the results.")


def model_facts(out: Path) -> Iterator[dict[str, Any]]:
    """What the files beside the models of a store say of their training."""
    for path in sorted((out / MODELS).rglob("*.json")):
        if path.name.endswith(".run.json"):
            continue
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(found, dict):
            yield found


def settled_precision(out: Path, asked: Precision | None) -> Precision | None:
    """The precision to work in: what is asked for, else that of the cells and models that are there.

    One that neither has would replace them all, and is refused. Where they have both, one must be asked for.
    """
    Run(device="cpu", precision=asked)
    cells = read_store(out) if (out / CELLS).is_dir() else []
    found = {cell.precision for cell in cells} | {str(facts.get("precision")) for facts in model_facts(out)}
    there: list[Precision] = [known for known in get_args(Precision) if known in found]
    if asked is None and len(there) > 1:
        raise UsageError(f"{out} holds results in {' and '.join(there)}; say with --precision which of them to keep.")
    if asked is not None and there and asked not in there:
        raise UsageError(f"{out} holds results in another precision ({there[0]}, not {asked}); give another folder.")
    return there[0] if asked is None and there else asked


def read_experiment(out: Path) -> dict[str, Any] | None:
    """What the store says of its experiment, or None where there is no readable file."""
    try:
        found = json.loads((out / EXPERIMENT_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    try:
        return found if isinstance(found, dict) and _is_experiment(found) else None
    except AttributeError:
        return None


def _is_experiment(found: Mapping[str, Any]) -> bool:
    """Whether what tables ask of an experiment is of its kind; scenes are requested by name, and texts have no rows."""
    rows, columns, forget = (found.get(name, []) for name in ("rows", "columns", "forget"))
    return (
        isinstance(found.get("name"), str)
        and all(isinstance(listed, list) for listed in (rows, columns, forget))
        and all(isinstance(row, str) or {"name", "setting"} <= row.keys() for row in rows)
        and all(isinstance(request, list | str) for request in forget)
    )


def write_experiment(out: Path, experiment: Experiment) -> None:
    """Say whose results the store holds; a store of another experiment is refused.

    Where nothing readable says so, the cells and models that are there do.
    """
    known = read_experiment(out)
    if known is not None and known["name"] != experiment.name:
        raise UsageError(f"{out} holds results of {known['name']}, not of {experiment.name}; give another folder.")
    text = json.dumps(experiment.to_dict(), indent=1, sort_keys=True) + "\n"
    everything = json.loads(text)
    asked = {name: everything.get(name) for name in OF_ALL_CELLS}
    if known is not None:
        refuse_other(out, known, asked)
    else:
        setups = [cell.setup for cell in read_store(out)] if (out / CELLS).is_dir() else []
        for facts in (*setups, *model_facts(out)):
            refuse_other(out, {"name": facts.get("dataset"), **facts}, asked)
    if known is None or (out / EXPERIMENT_FILE).read_text(encoding="utf-8") != text:
        write_text(out / EXPERIMENT_FILE, text)


def refuse_other(out: Path, known: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raise where a store's models came about in another way than is asked for.

    Args:
        out: the store.
        known: what it says of its experiment.
        asked: what decides how models come about.
    """
    other = next((name for name, value in asked.items() if known.get(name) != value), None)
    if other is None:
        return
    before, after = known.get(other), asked[other]
    there, wanted = _brief(before), _brief(after)
    if there == wanted and isinstance(before, dict) and isinstance(after, dict):
        # Two recipes of one name and length.
        entry = next(name for name in {**before, **after} if before.get(name) != after.get(name))
        there, wanted = (f"{entry} {recipe.get(entry)}" for recipe in (before, after))
    raise UsageError(
        f"{out} holds results of {known['name']} with another {other.replace('_', ' ')} ({there}, not {wanted}); "
        "give another folder."
    )


def _brief(value: Any) -> str:
    """A recipe by its name and length, a digest by its first digits, anything else as it is."""
    if isinstance(value, dict):
        return f"{value.get('name')} of {value.get('epochs') or value.get('steps')}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:12]
    return "none" if value is None else str(value)
