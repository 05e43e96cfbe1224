"""Compute the missing cells of an experiment, with the models that the cells share."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

from pour._io import write_text
from pour._progress import ProgressBar
from pour.bench.cell import CACHE, CellWorker, cell_setup, error_path, read_errors
from pour.bench.executors import alone, check_workers, crew
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store import (
    CellKey,
    StoredExperiment,
    read_cell,
    read_experiment,
    write_experiment,
)
from pour.errors import PourError, UsageError, warn
from pour.training.run import Run, resolve_device
from pour.unlearning.registry import get_method

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from pour.bench.executors import Crew
    from pour.bench.experiment import Experiment
    from pour.bench.rows import Row
    from pour.training.run import Precision

__all__ = ["Outcome", "claim", "requests_of", "run_experiment"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of a run over a grid."""

    out: Path
    done: int
    """Number of cells that this run computed."""
    kept: int
    """Number of cells that were in the store before."""
    failed: tuple[str, ...]
    """Cells of the grid whose method diverged or refused, with the reason."""
    requests: tuple[tuple[int, ...], ...] = ()
    """Classes of each request."""


def run_experiment(
    experiment: Experiment | str,
    out: str | Path,
    *,
    root: str | Path | None = None,
    methods: Iterable[str] | None = None,
    seeds: Sequence[int] | None = None,
    forget: Sequence[int | str | Sequence[int | str]] | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    jobs: int = 1,
    ray: str | None = None,
    compile: bool = False,
    progress: bool = True,
) -> Outcome:
    """Compute every cell of a grid that is missing in the store.

    The same call resumes a stopped or killed run. A stored cell is kept if its file is intact, its settings are the
    requested ones, its samples are those of the dataset, and its models are those of the store. If the models of a
    seed have changed, its cells are computed again. Models that were trained on other samples, or in another precision
    than requested, are refused.

    Args:
        experiment: An experiment, the name of a built-in one, or the path of a TOML file.
        out: Folder of the store: `cells/`, `models/` and a cache of features.
        root: Data folder, by default `POUR_DATA` or `~/.cache/pour`.
        methods: Only these rows, by method or by row. References are always computed.
        seeds: Seeds instead of the seeds of the experiment.
        forget: Other requests: classes by name or index, or lists of classes to forget together.
        device: Device, by default the GPU if there is one.
        precision: fp32 or bf16; by default the precision of the stored cells and models, or bf16 on a GPU that has it.
        jobs: Number of cells side by side. On a CPU each uses all threads of torch; set OMP_NUM_THREADS for fewer.
        ray: Address of a Ray cluster whose machines all see `out` and the data; "local" starts one here.
        compile: Let methods compile the encoders that they train. This is faster for a whole grid on a GPU.
        progress: Show a progress bar.
    """
    check_workers(jobs, ray)
    # With Ray, the device belongs to the workers, not to this process.
    device = device if ray is not None else str(resolve_device(device))
    shared = SharedModels.open(experiment, out, root, device, precision)
    grid, folder = shared.experiment, shared.out
    requests = requests_of(shared, forget)
    selected = replace(
        grid,
        rows=grid.select(methods),
        seeds=tuple(dict.fromkeys(grid.seeds if seeds is None else seeds)),
        forget=requests,
    )
    claim(shared)
    _warn_of_tuned_tests(selected)
    _refuse_to_untune(selected, folder)
    groups = [_Group(request, seed, selected.rows) for request in requests for seed in selected.seeds]
    total = len(groups) * len(selected.rows)
    done: set[CellKey] = set()
    broken: dict[CellKey, str] = {}
    if pending := _pending(groups, shared):
        # A full disk must be reported before hours of training.
        write_text(folder / CACHE / "probe", "")
        # The cache of a killed run may be damaged.
        shutil.rmtree(folder / CACHE, ignore_errors=True)
        for key in (key for cells in pending.values() for key in cells):
            (folder / error_path(key)).unlink(missing_ok=True)
        needed = sum(map(len, pending.values())) + sum(len(group.models(shared)) for group in pending)
        with crew(partial(CellWorker, replace(shared), compile), device=device, jobs=min(jobs, needed), ray=ray) as do:
            # Heads share the features of their backbone: this process computes them once, while the others start.
            train = partial(alone, CellWorker(shared, compile)) if shared.is_quick and ray is None else do
            # A newly trained original makes cells of its other requests stale, so repeat until no cell is missing.
            while pending:
                done |= _compute(pending, shared, train, do, f"bench {grid.name}", progress=progress)
                broken = read_errors(folder, done)
                left = _pending(groups, shared, without=broken.keys())
                if left == pending:
                    raise PourError(
                        f"The cells under {folder} were written but do not match their settings; remove the folder."
                    )
                pending = left
    if broken:
        first = min(broken)
        raise PourError(
            f"An exception ended {len(broken)} cells, such as {first.row} of seed {first.seed}: {broken[first]!r}. The "
            f"other cells are stored, and {folder / error_path(first)} has the traceback; the same command tries again."
        )
    failed = tuple(_failures(folder, groups))
    return Outcome(out=folder, done=len(done), kept=total - len(done), failed=failed, requests=requests)


def claim(shared: SharedModels) -> None:
    """Write the experiment into the store; a new folder must first have readable data and a network."""
    run = Run(device="cpu", precision=shared.precision)
    if read_experiment(shared.out) is None:
        with run.seeded():
            shared.build()
    try:
        requests = requests_of(shared)
    except UsageError:
        # This run can forget other classes than the experiment, whose classes the dataset lacks.
        requests = ()
    write_experiment(shared.out, StoredExperiment.of(shared.experiment, requests))


def requests_of(
    shared: SharedModels, forget: Sequence[int | str | Sequence[int | str]] | None = None
) -> tuple[tuple[int, ...], ...]:
    """Return the indices of the classes of each request, by default the experiment's requests."""
    listed = [
        [request] if isinstance(request, int | str) else list(request)
        for request in (shared.experiment.forget if forget is None else forget)
    ]
    # The indices of an experiment need no dataset, so that finished results can be shown without it.
    needs_no_data = forget is None and all(isinstance(label, int) for request in listed for label in request)
    resolved = listed if needs_no_data else [shared.task.classes(shared.dataset, request) for request in listed]
    requests = list(dict.fromkeys(tuple(sorted(request)) for request in resolved))
    if shared.experiment.together:
        requests.append(tuple(sorted({label for request in requests for label in request})))
    return tuple(dict.fromkeys(requests))  # type: ignore[arg-type]


def _warn_of_tuned_tests(selected: Experiment) -> None:
    """Warn of rows whose options were chosen on a class or a seed of this run."""
    forgotten = {label for request in selected.forget for label in request}
    classes = sorted(forgotten & {label for row in selected.rows for label in row.tuned_on})
    seeds = sorted({row.tuned_with for row in selected.rows if row.tuned_with is not None} & set(selected.seeds))
    if classes or seeds:
        subject = f"class {classes[0]}" if classes else f"seed {seeds[0]}"
        warn(f"The options of the tuned rows were chosen on {subject}; they are no fair test of it.")


def _refuse_to_untune(selected: Experiment, out: Path) -> None:
    """Raise UsageError if an untuned row would replace a stored tuned one, for example because --tuning is missing."""
    untuned = {row.name: row for row in selected.rows if row.untuned}
    places = product(selected.forget, selected.seeds, untuned)
    for cell in (read_cell(out, CellKey(request, seed, row)) for request, seed, row in places):  # type: ignore[arg-type]
        if cell is None or cell.untuned:
            continue
        if cell.setup["options"] != cell_setup(selected, untuned[cell.key.row], cell.key)["options"]:
            raise UsageError(
                f"{cell.key.row} of seed {cell.key.seed} under {out} has tuned options, and this run would replace it "
                "by an untuned result; give the folder of its tuning with tuning=, or another folder with out=."
            )


def _compute(
    pending: dict[_Group, list[CellKey]],
    shared: SharedModels,
    train: Crew[ModelKey | CellKey],
    do: Crew[ModelKey | CellKey],
    description: str,
    *,
    progress: bool,
) -> set[CellKey]:
    """Compute the cells of every group, after its models."""
    computed: set[CellKey] = set()
    done, total = 0, len(_models(pending, shared)) + sum(map(len, pending.values()))
    with ProgressBar(total, description, enabled=progress) as bar:
        # One seed after the other, so that a stopped grid has whole seeds. If models are ready in seconds, the
        # models of all seeds are trained first, because waiting for the last cell of each seed takes longer.
        batches = [list(pending)] if shared.is_quick else [[group] for group in pending]
        training = train(_models(batches[0], shared))
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            for key in training:
                done += 1
                bar.update(min(done, total), note=f"trained {key.path.stem}, seed {key.seed}")
            # Read again, because new models make stored cells stale.
            cells = [key for group in batch for key in group.pending(shared)]
            computing = do(sorted(cells, key=partial(_turn, shared.experiment)))
            # A worker without cells starts training the next seed's models, so that no worker is idle.
            training = train(_models(following, shared))
            for key in computing:
                computed.add(key)  # type: ignore[arg-type]
                done += 1
                bar.update(min(done, total), note=f"{key.path.stem}, seed {key.seed}")
            shutil.rmtree(shared.out / CACHE, ignore_errors=True)
    return computed


def _models(groups: Iterable[_Group], shared: SharedModels) -> list[ModelKey]:
    """Return the models to train for `groups`. Requests of one seed share its original."""
    return list(dict.fromkeys(key for group in groups for key in group.models(shared)))


def _turn(experiment: Experiment, key: CellKey) -> tuple[int, int]:
    """Return the sort key of a cell: by seed, references first, then the slowest methods first.

    Methods that read all retained images take longest, most of all in the common setting with its 20 epochs. If they
    were last, all jobs would wait for one. The references are first, because every audit needs their cached features.
    """
    row = next(row for row in experiment.rows if row.name == key.row)
    if row.method is None:
        return key.seed, 0
    if "retain" not in get_method(row.method).needs:
        return key.seed, 3
    return key.seed, 1 if row.setting == "common" else 2


@dataclass(frozen=True)
class _Group:
    """The cells of one seed and one request, which share the trained models."""

    forget: tuple[int, ...]
    seed: int
    rows: tuple[Row, ...] = field(hash=False)

    @property
    def cells(self) -> dict[CellKey, Row]:
        """The rows by the keys of their cells."""
        return {CellKey(self.forget, self.seed, row.name): row for row in self.rows}

    def models(self, shared: SharedModels) -> list[ModelKey]:
        """Return the models that must be trained first."""
        keys = [ModelKey.of(self.seed, role, self.forget) for role in shared.experiment.roles]
        return [key for key in keys if shared.ready(key) is None]

    def pending(self, shared: SharedModels) -> list[CellKey]:
        """Return the cells that are missing, damaged, or of other settings, samples or models, in row order."""
        rows = self.cells
        cells = {key: read_cell(shared.out, key) for key in rows}
        good = {
            key: cell
            for key, cell in cells.items()
            if cell is not None
            and cell.setup == cell_setup(shared.experiment, rows[key], key)
            and shared.precision in (None, cell.precision)
            and shared.present_digest in (None, cell.data)
        }
        roles = shared.experiment.roles
        stored = {role: shared.ready(ModelKey.of(self.seed, role, self.forget)) for role in roles}
        for role, digest in stored.items():
            digests = {cell.models.get(role) for cell in good.values()}
            # A seed without its original was imported; its folder may contain the ceiling of the previous seed.
            if stored["original"] is not None and digest is not None:
                good = {key: cell for key, cell in good.items() if cell.models.get(role) == digest}
            elif len(digests) > 1:
                # Without the model it is unknown which of the cells is right.
                good = {}
        return [key for key in rows if key not in good]


def _pending(
    groups: Iterable[_Group], shared: SharedModels, *, without: Collection[CellKey] = ()
) -> dict[_Group, list[CellKey]]:
    """Return the cells to compute, by group, except those in `without`."""
    cells = {group: [key for key in group.pending(shared) if key not in without] for group in groups}
    return {group: keys for group, keys in cells.items() if keys}


def _failures(out: Path, groups: Sequence[_Group]) -> list[str]:
    """Return a sentence per failed cell. It names the classes if there are several requests."""
    several = len({group.forget for group in groups}) > 1
    sentences = []
    for key in (key for group in groups for key in group.cells):
        cell = read_cell(out, key)
        if cell is not None and cell.failed is not None:
            classes = f", class{'es' * (len(cell.forgotten_names) > 1)} {', '.join(cell.forgotten_names)}"
            sentences.append(f"{key.row}{classes * several}, seed {key.seed}: {cell.failed}")
    return sentences
