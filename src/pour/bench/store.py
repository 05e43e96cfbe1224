"""Results of an experiment: a folder with one file per cell while it runs, and one compressed file to publish."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import shlex
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pour._io import atomic_path, existing_file, refuse_to_overwrite, write_text
from pour._records import Json, decode, encode, read, record
from pour.auditing.distance import Discrepancy
from pour.auditing.measurement import Reading
from pour.bench.columns import TableLayout
from pour.bench.rows import Row, check_row_name
from pour.errors import UsageError
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TypeAlias

    from pour.bench.experiment import Experiment

    Setup: TypeAlias = Mapping[str, Any]
else:
    from typing_extensions import TypedDict

    class Setup(TypedDict):
        """Keys of a cell's setup that every task has; a task may add others."""

        dataset: str
        architecture: str
        recipe: Mapping[str, Json] | None
        forgotten: list[int]
        seed: int
        row: str
        method: str | None
        setting: str
        options: Mapping[str, Json]

    Setup.__pydantic_config__ = {"strict": True, "extra": "allow", "allow_inf_nan": False}


__all__ = [
    "CELLS",
    "Cell",
    "CellKey",
    "Store",
    "StoredExperiment",
    "check_folder",
    "check_unmixed",
    "export_store",
    "forget_name",
    "import_store",
    "load_store",
    "model_facts",
    "read_cell",
    "read_experiment",
    "read_store",
    "refuse_other",
    "seal",
    "seed_text",
    "settled_precision",
    "unseal",
    "write_cell",
    "write_experiment",
]

SCHEMA = 1
CELLS = "cells"
MODELS = "models"
EXPERIMENT_FILE = "experiment.json"
START = ("weights", "freeze_backbone", "image_size", "head")
"""Settings of classifiers that a store lacks if its networks were trained from scratch."""
SAME_IN_ALL_CELLS = ("dataset", "architecture", "recipe", *START)
"""Settings that decide the original and the retrained models."""
_OF_ONE_CELL = ("forgotten", "seed", "row", "method", "setting", "options")
_DIGEST = re.compile("[0-9a-f]{64}")
_LARGEST_FILE = 256 * 2**20


@dataclass(frozen=True, order=True)
class CellKey:
    """Request, seed and row of a cell.

    Examples:
        >>> CellKey((0, 3), 1, "delete-common").path.as_posix()
        'cells/forget-0-3/seed-1/delete-common.json'
    """

    forget: tuple[int, ...]
    seed: int
    row: str

    @property
    def path(self) -> Path:
        """File of the cell inside its store."""
        return Path(CELLS) / forget_name(self.forget) / f"seed-{self.seed}" / f"{self.row}.json"


def forget_name(forget: tuple[int, ...]) -> str:
    """Return the name of a request in file names."""
    return "forget-" + "-".join(map(str, forget))


@record()
class Cell:
    """Result of one row for one seed and one request, with all that is needed to compute it again.

    On a CPU, two runs give the same cell. Times, host, device and date are in the file beside it.
    """

    setup: Setup
    """Dataset, architecture, recipe, forgotten classes, seed, row, method, setting and all options."""
    models: Mapping[str, str]
    """SHA-256 of the weights by role: original, retrained, ceiling and unlearned."""
    data: str
    """SHA-256 of the training and test images and labels."""
    precision: str
    versions: Mapping[str, str]
    family: str
    needs: tuple[str, ...] = ()
    """Data that the method reads."""
    note: str = ""
    """Origin of the options."""
    untuned: bool = False
    """Whether the row is for tuned options, but its method was not tuned."""
    tuned_on: tuple[int, ...] = ()
    """Classes that were forgotten when the options were tuned."""
    tuned_with: int | None = None
    """Seed of that tuning."""
    forgotten_names: tuple[str, ...] = ()
    failed: str | None = None
    """Reason for absent values: a sentence of the divergence guard, the method or the audit."""
    warnings: tuple[str, ...] = ()
    """Warnings of the method."""
    rate_factor: float = 1.0
    """Factor on the learning rates of the setup, below 1 if the method diverged at them."""
    steps: int = 0
    weight_change: float | None = None
    """|theta' - theta| / |theta| over all weights."""
    values: Mapping[str, Reading] = field(default_factory=dict)
    """Metrics of the audit by name."""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    discrepancies: tuple[Discrepancy, ...] = ()
    """Distances to the retrained model with their terms."""
    collapse: Mapping[str, int | float] = field(default_factory=dict)
    """Measures of Neural Collapse on retained training images."""
    answers: tuple[int, ...] = ()
    """Number of times that each class is the answer on test images of the forgotten classes."""

    def __post_init__(self) -> None:
        check_row_name(self.key.row)
        if self.note.startswith("not tuned"):
            # Cells of earlier versions have only the note.
            object.__setattr__(self, "untuned", True)

    @property
    def key(self) -> CellKey:
        """Request, seed and row."""
        return CellKey(tuple(self.setup["forgotten"]), self.setup["seed"], self.setup["row"])

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the forgotten classes, or their indices if they have no names."""
        return self.forgotten_names or tuple(map(str, self.key.forget))


@record()
class StoredExperiment:
    """Content of `experiment.json`: the settings that all cells share, and the arrangement of the table."""

    name: str
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Settings that decide the models: dataset, architecture, recipe and the task's own."""
    forget: tuple[tuple[int, ...], ...] = ()
    """Requests in the order of the table."""
    seeds: tuple[int, ...] = ()
    rows: tuple[Row, ...] = ()
    task: str = "classify"
    columns: tuple[str, ...] = ()
    """Columns of the table."""
    table: TableLayout = field(default_factory=TableLayout)
    """Arrangement of the table."""

    @classmethod
    def of(cls, experiment: Experiment, forget: tuple[tuple[int, ...], ...] | None = None) -> StoredExperiment:
        """Return the content of a store's file for an experiment.

        Args:
            experiment: Experiment of the store.
            forget: Requests by index; by default those of the experiment whose classes are indices.
        """
        known = [tuple(label for label in request if isinstance(label, int)) for request in experiment.forget]
        return cls(
            name=experiment.name,
            settings=json.loads(json.dumps(experiment.identity)),
            forget=tuple(filter(None, known)) if forget is None else forget,
            seeds=experiment.seeds,
            rows=experiment.rows,
            task=experiment.task,
            columns=experiment.columns or experiment.get_task().metrics,
            table=experiment.table,
        )

    def check_name(self, source: Path, expected: str | None) -> None:
        """Raise UsageError if the experiment does not have the expected name."""
        if expected not in (None, self.name):
            raise UsageError(
                f"{source} contains results of {self.name}, not of {expected}; give another folder or file."
            )


@record()
class StoredCell:
    """Cell with the files beside it."""

    cell: Cell
    run: Json = None
    """Command, commit, device, host, date and times."""
    report: Json = None
    """Audit of the unlearned model, if it is kept."""


@record(version="schema")
class ResultFile:
    """Content of a published file: a whole experiment without weights."""

    cells: tuple[StoredCell, ...]
    experiment: StoredExperiment | None = None
    models: Mapping[str, Json] = field(default_factory=dict)
    """Training of the models, by their file in the store."""
    schema: int = SCHEMA


@dataclass(frozen=True, kw_only=True)
class Store:
    """Experiment and cells of a folder or a published file."""

    path: Path
    cells: tuple[Cell, ...]
    experiment: StoredExperiment | None = None
    damaged: tuple[str, ...] = ()
    """Cells that are cut short, altered or moved, by their file in the store."""


@record(version="schema")
class _SealedCell:
    """Content of a cell's file."""

    cell: Cell
    sha256: str
    schema: int = SCHEMA


def seal(cell: Cell) -> str:
    """Return the text of a cell's file, with a checksum of its content."""
    sealed = _SealedCell(cell=cell, sha256=_checksum(json.loads(encode(cell))))
    return encode(sealed, indent=1, sort_keys=True) + "\n"


def unseal(text: str, path: str | Path = "The cell") -> Cell:
    """Return the cell in a file's text. Raise UsageError if it is cut short, altered or of another schema."""
    sealed = decode(_SealedCell, text, path)
    if sealed.sha256 != _checksum(json.loads(text)["cell"]):
        raise UsageError(f"{path} was altered: its checksum belongs to other content.")
    return sealed.cell


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read_cell(out: Path, key: CellKey) -> Cell | None:
    """Return a cell of a folder, or None if it is missing, damaged or in another cell's place."""
    cell = _cell_in(out / key.path)
    return cell if cell is not None and cell.key == key else None


def write_cell(out: Path, cell: Cell, run: Mapping[str, Any], report: str | None) -> None:
    """Write a cell and the files beside it. The cell comes last: if it exists, the others do too.

    Args:
        out: Folder of the store.
        cell: Cell to write.
        run: Command, commit, device, host, date and times.
        report: JSON of the audit. None removes the audit of an earlier cell.
    """
    path = out / cell.key.path
    if report is None:
        path.with_suffix(".report.json").unlink(missing_ok=True)
    else:
        write_text(path.with_suffix(".report.json"), report)
    write_text(path.with_suffix(".run.json"), json.dumps(run, indent=1, sort_keys=True) + "\n")
    write_text(path, seal(cell))


def read_store(path: str | Path) -> list[Cell]:
    """Return the whole cells of a folder or a published file. A grid computes damaged cells again."""
    return list(load_store(path).cells)


def load_store(path: str | Path) -> Store:
    """Return the experiment and the cells of a folder or a published file.

    Raises:
        UsageError: There are no results, or the file is damaged.
    """
    source = Path(path)
    if source.is_file() or source.suffix == ".gz":
        content = _read_results(source)
        return Store(path=source, cells=tuple(entry.cell for entry in content.cells), experiment=content.experiment)
    if not (source / CELLS).is_dir():
        raise UsageError(f"{source} contains no results; run pour bench --out {source} first.")
    files = sorted((source / CELLS).glob("forget-*/seed-*/*.json"))
    beside = (".run.json", ".report.json")
    cells = {file.relative_to(source): _cell_in(file) for file in files if not file.name.endswith(beside)}
    whole = {file: cell for file, cell in cells.items() if cell is not None and cell.key.path == file}
    return Store(
        path=source,
        cells=tuple(whole.values()),
        experiment=read_experiment(source),
        damaged=tuple(file.as_posix() for file in cells if file not in whole),
    )


def _cell_in(file: Path) -> Cell | None:
    """Return the cell in a file, or None if it is missing or damaged."""
    try:
        return unseal(file.read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError, UsageError):
        return None


def check_folder(out: Path) -> None:
    """Raise UsageError if a store cannot be in a folder: a file has its name, or the path is not allowed."""
    places = (out, *out.parents, out / CELLS, out / MODELS)
    try:
        blocked = next((path for path in places if path.exists() and not path.is_dir()), None)
    except OSError as error:
        raise UsageError(f"{out} cannot be used ({error.strerror or error}); give another folder.") from error
    if blocked is not None:
        raise UsageError(f"{blocked} is a file; give a folder for the results.")


def model_facts(out: Path) -> list[dict[str, Any]]:
    """Return the descriptions of a store's models, from the files beside them."""
    return [facts for name, facts in _model_files(out).items() if not name.endswith(".run.json")]


def _model_files(out: Path) -> dict[str, Any]:
    """Return the readable JSON files beside the models, by their path in the store."""
    files = {}
    for path in sorted((out / MODELS).rglob("*.json")):
        with contextlib.suppress(UsageError):
            files[path.relative_to(out).as_posix()] = read(dict[str, Json], path)
    return files


def settled_precision(out: Path, requested: Precision | None) -> Precision | None:
    """Return the precision of a run: the argument, otherwise the precision of the store's cells and models.

    Raises:
        UsageError: The store has another precision, or both and `requested` is None.
    """
    Run(device="cpu", precision=requested)
    cells = read_store(out) if (out / CELLS).is_dir() else []
    used = {cell.precision for cell in cells} | {str(facts.get("precision")) for facts in model_facts(out)}
    stored: list[Precision] = [precision for precision in get_args(Precision) if precision in used]
    if requested is None and len(stored) > 1:
        raise UsageError(f"{out} contains results in {' and '.join(stored)}; choose one with precision=.")
    if requested is not None and stored and requested not in stored:
        raise UsageError(
            f"{out} contains results in another precision ({stored[0]}, not {requested}); give another folder."
        )
    return stored[0] if requested is None and stored else requested


def read_experiment(out: Path) -> StoredExperiment | None:
    """Return the experiment of a folder, or None if its file is missing or damaged."""
    try:
        return read(StoredExperiment, out / EXPERIMENT_FILE)
    except UsageError:
        return None


def write_experiment(out: Path, experiment: StoredExperiment) -> None:
    """Write the experiment of a folder.

    Raises:
        UsageError: The folder contains results of another experiment, or of models that were trained in another way.
    """
    stored = read_experiment(out)
    if stored == experiment:
        return
    if stored is not None:
        stored.check_name(out, experiment.name)
        settings = {name: experiment.settings.get(name) for name in {**stored.settings, **experiment.settings}}
        refuse_other(out, {**stored.settings, "name": stored.name}, settings)
    else:
        setups = [cell.setup for cell in read_store(out)] if (out / CELLS).is_dir() else []
        for facts in (*setups, *model_facts(out)):
            names = [name for name in (*SAME_IN_ALL_CELLS, *experiment.settings) if name in facts]
            settings = {name: experiment.settings.get(name) for name in names}
            refuse_other(out, {"name": facts.get("dataset"), **facts}, settings)
    write_text(out / EXPERIMENT_FILE, encode(experiment, indent=1, sort_keys=True) + "\n")


def refuse_other(out: Path, recorded: Mapping[str, Any], requested: Mapping[str, Any]) -> None:
    """Raise UsageError if the models of a store were trained in another way.

    Args:
        out: Folder of the store.
        recorded: Settings of the store's models, and the name of its experiment.
        requested: Settings that decide the models.
    """
    for name, value in requested.items():
        stored = recorded.get(name)
        if stored == value:
            continue
        texts = _brief(stored), _brief(value)
        if texts[0] == texts[1] and isinstance(stored, dict) and isinstance(value, dict):
            # The two recipes have the same name and length, so name the first entry that differs.
            entry = next(key for key in {**stored, **value} if stored.get(key) != value.get(key))
            texts = f"{entry} {stored.get(entry)}", f"{entry} {value.get(entry)}"
        setting = f"{name.replace('_', ' ')} ({texts[0]}, not {texts[1]})"
        raise UsageError(f"{out} contains results of {recorded['name']} with another {setting}; give another folder.")


def _brief(value: Any) -> str:
    """Return a recipe's name and length, the first digits of a digest, or the value itself."""
    if isinstance(value, dict):
        return f"{value.get('name')} of {value.get('epochs') or value.get('steps')}"
    if isinstance(value, str) and _DIGEST.fullmatch(value):
        return value[:12]
    return "none" if value is None else str(value)


def export_store(out: str | Path, file: str | Path, *, overwrite: bool = False, experiment: str | None = None) -> int:
    """Write a store without its weights to one compressed file. Return the number of cells.

    The same results make the same file on every machine.

    Args:
        out: Folder of the store.
        file: File to write, such as `cifar10.json.gz`.
        overwrite: Replace an existing file.
        experiment: Name that the store's experiment must have; by default any.
    """
    folder, target = Path(out), Path(file)
    refuse_to_overwrite(target, overwrite=overwrite)
    store = load_store(folder)
    if store.damaged:
        raise UsageError(
            f"{folder} has damaged cells ({len(store.damaged)}), such as {store.damaged[0]}; run pour bench again to "
            "make them, or remove them."
        )
    if not store.cells:
        raise UsageError(f"{folder} contains no whole cell to export; run pour bench --out {folder} first.")
    if store.experiment is not None:
        store.experiment.check_name(folder, experiment)
    cells = []
    for cell in store.cells:
        path = folder / cell.key.path
        beside = (path.with_suffix(suffix) for suffix in (".run.json", ".report.json"))
        run, report = (read(dict[str, Json], file) if file.is_file() else None for file in beside)
        cells.append(StoredCell(cell=cell, run=run, report=report))
    content = ResultFile(cells=tuple(cells), experiment=store.experiment, models=_model_files(folder))
    with atomic_path(target) as temporary:
        temporary.write_bytes(gzip.compress(encode(content, sort_keys=True).encode(), mtime=0))
    return len(cells)


def _read_results(source: Path) -> ResultFile:
    """Return the content of a published file."""
    try:
        with gzip.open(existing_file(source)) as stream:
            text = stream.read(_LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{source} cannot be read as an exported store ({error}).") from error
    if len(text) > _LARGEST_FILE:
        raise UsageError(f"{source} is larger than {_LARGEST_FILE // 2**20} MiB; give a file of pour bench --export.")
    content = decode(ResultFile, text, source)
    if not content.cells:
        raise UsageError(f"{source} contains no cell; give a file of pour bench --export.")
    return content


def import_store(file: str | Path, out: str | Path, *, overwrite: bool = False, experiment: str | None = None) -> int:
    """Copy the cells of a published file into a folder. Return the number of new cells.

    Args:
        file: File of `export_store`.
        out: Folder of the store, made if it is missing.
        overwrite: Replace cells of the folder that differ.
        experiment: Name that the file's experiment must have; by default the name of the folder's experiment, or any.

    Raises:
        UsageError: The file is damaged, its cells differ from the folder's, or both together belong to different
            models. Nothing was written.
    """
    source, folder = Path(file), Path(out)
    check_folder(folder.resolve())
    content, known = _read_results(source), read_experiment(folder)
    if content.experiment is not None:
        content.experiment.check_name(source, experiment or (None if known is None else known.name))
    elif experiment is not None:
        raise UsageError(f"{source} does not name its experiment; export a store that has {EXPERIMENT_FILE}.")
    cells = {cell.key: cell for cell in read_store(folder)} if (folder / CELLS).is_dir() else {}
    fresh = [entry for entry in content.cells if cells.get(entry.cell.key) != entry.cell]
    clashes = sorted(entry.cell.key.path.as_posix() for entry in fresh if entry.cell.key in cells)
    if clashes and not overwrite:
        raise UsageError(
            f"{len(clashes)} cells of {source} differ from those in {folder}, {clashes[0]} among them; pass "
            "overwrite=True to replace them, or give another folder."
        )
    remedy = "give another folder for them" if cells else None
    check_unmixed((cells | {entry.cell.key: entry.cell for entry in fresh}).values(), remedy=remedy)
    if content.experiment is not None and known is None:
        write_experiment(folder, content.experiment)
    for entry in fresh:
        report = None if entry.report is None else json.dumps(entry.report, indent=1) + "\n"
        write_cell(folder, entry.cell, entry.run or {}, report)
    return len(fresh)


def check_unmixed(cells: Iterable[Cell], *, remedy: str | None = None) -> None:
    """Raise UsageError if cells do not belong into one table.

    All cells need the same network, recipe, precision and images; each row the same options for every seed; and the
    cells of one seed the same original and retrained models.

    Args:
        cells: Cells of a store.
        remedy: Advice of the error. By default, the command that computes the odd cells again.
    """
    groups: dict[tuple[int, str, object], dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        for condition, value in _conditions(cell):
            groups[condition][json.dumps(value, sort_keys=True)].append(cell)
    mixed = [condition for condition, by_value in groups.items() if len(by_value) > 1]
    if mixed:
        rank, sentence, _ = condition = min(mixed, key=lambda condition: condition[0])
        kinds = sorted(groups[condition].values(), key=len)
        advice = _command([cell for kind in kinds for cell in kind]) if remedy is None else f"{remedy}."
        if rank == 0:
            advice = "keep each kind in its own folder."
        raise UsageError(f"{sentence.format(len(kinds))}; {_odd_cells(kinds)}, so {advice}")


def _conditions(cell: Cell) -> Iterator[tuple[tuple[int, str, object], Any]]:
    """Yield all values of a cell that others must share: rank, sentence and scope of a difference, and the value."""
    differ = "The cells of this store differ in their"
    for name in SAME_IN_ALL_CELLS:
        yield (0, f"{differ} {name.replace('_', ' ')}", None), cell.setup.get(name)
    yield (0, f"{differ} precision", None), cell.precision
    yield (1, f"{differ} images", None), cell.data
    for name in sorted(cell.setup.keys() - {*SAME_IN_ALL_CELLS, *_OF_ONE_CELL}):
        yield (1, f"{differ} {name}", None), cell.setup[name]
    yield (2, f"The cells of {cell.key.row} have different options", None), cell.setup["options"]
    for role in (role for role in ("original", "retrained", "ceiling") if role in cell.models):
        request = None if role == "original" else cell.key.forget
        sentence = f"The cells of seed {cell.key.seed} belong to {{}} different {role} models"
        yield (3, sentence, request), cell.models[role]


def seed_text(cells: Iterable[Cell]) -> str:
    """Return the seeds of cells in words."""
    seeds = sorted({cell.key.seed for cell in cells})
    return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"


def _odd_cells(kinds: list[list[Cell]]) -> str:
    """Describe the smallest group of cells."""
    smallest, others = kinds[0], sum(map(len, kinds[1:]))
    rows = sorted({cell.key.row for cell in smallest})
    classes = dict.fromkeys(" and ".join(cell.class_names) for cell in smallest)
    where = f"{seed_text(smallest)}, class {', '.join(classes)}"
    return f"{', '.join(rows)} ({where}) {'is' if len(smallest) == 1 else 'are'} unlike the other {others}"


def _command(cells: list[Cell]) -> str:
    """Return the flags that compute cells again."""
    seeds = sorted({cell.key.seed for cell in cells})
    classes = dict.fromkeys(cell.class_names[0] for cell in cells if len(cell.key.forget) == 1)
    flags = ["--seeds", ",".join(map(str, seeds)) + "," * (len(seeds) == 1)]
    flags += [part for name in classes for part in ("--forget", name)]
    return (
        f"run pour bench on this store with {shlex.join(flags)} and without --methods, which redoes those that do not "
        "match, and remove cells of rows that the experiment no longer has."
    )
