"""Walking an experiment's grid: train what is shared, make every cell that is not there, resume after anything."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from pour._io import write_text
from pour._progress import ProgressBar
from pour.bench.compute_cell import CACHE, ROLES, CellWorker, Work, cell_setup, error_path, forget_errors, read_errors
from pour.bench.executors import check_ray, crew
from pour.bench.experiments import Experiment, get_experiment
from pour.bench.settings import NOT_TUNED
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store import CellKey, check_folder, read_cell, read_experiment, settled_precision, write_experiment
from pour.data.classes import resolve_classes
from pour.errors import PourError, UsageError
from pour.training.run import Run, resolve_device
from pour.unlearning.registry import get_method

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from pour.bench.executors import Crew
    from pour.bench.experiments import Row
    from pour.bench.store import Cell
    from pour.training.run import Precision

__all__ = ["Outcome", "claim", "run_experiment"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a walk over the grid came to."""

    out: Path
    done: int
    """Cells made by this call."""
    kept: int
    """Cells that were there already."""
    failed: tuple[str, ...]
    """Cells of the grid whose method diverged or refused, with the reason."""


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
    """Make every cell of a grid that is not in the store yet.

    The same call goes on where it was stopped, killed ones included. A cell counts as done while its file is whole,
    its options are the ones asked for, its images are those of the dataset and its original and retrained models are
    those of the store; where a seed's models have changed, its cells are made again. Models that were trained on other
    images, or in another precision than is asked for, are refused.

    Args:
        experiment: one of ours by name, or your own.
        out: the folder of the store: ``cells/``, ``models/`` and a cache of features.
        root: the data folder, by default ``POUR_DATA`` or ``~/.cache/pour``.
        methods: only these, by method or by row; the references are always made.
        seeds: instead of the experiment's.
        forget: instead of the experiment's requests: classes by name or index, or lists of them to forget together.
        device: where to compute, by default the GPU where there is one.
        precision: fp32 or bf16; by default what the cells and models that are there have, else bf16 on a GPU that has
            it.
        jobs: cells side by side. On a CPU each uses all threads of torch; set OMP_NUM_THREADS for fewer.
        ray: the address of a Ray cluster whose machines all see ``out`` and the data; "local" starts one here.
        compile: let methods compile the encoders they train, which pays for a whole grid on a GPU.
        progress: show a progress bar.
    """
    grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
    if jobs < 1:
        raise UsageError(f"The number of jobs must be at least 1, but is {jobs}.")
    if ray is not None:
        check_ray(ray)
    folder = Path(out).resolve()
    check_folder(folder)
    work = Work(
        experiment=grid,
        out=folder,
        root=None if root is None else Path(root),
        # With Ray it is the workers that have the device.
        device=device if ray is not None else str(resolve_device(device)),
        precision=settled_precision(folder, precision),
        compile=compile,
    )
    shared = SharedModels(grid, folder, work.root, work.device, work.precision)
    asked = replace(
        grid,
        rows=grid.select(methods),
        seeds=tuple(dict.fromkeys(grid.seeds if seeds is None else seeds)),
        forget=tuple(dict.fromkeys(grid.forget if forget is None else _requests(forget, shared))),
    )
    claim(shared)
    _say_where_tuning_saw_the_test(asked)
    _refuse_to_untune(asked, folder)
    groups = [_Group(request, seed, asked.rows) for request in asked.forget for seed in asked.seeds]
    total = len(groups) * len(asked.rows)
    made: set[CellKey] = set()
    broken: dict[CellKey, str] = {}
    if pending := _pending(groups, shared):
        # Whether anything can be kept is better known before hours of training.
        write_text(folder / CACHE / "probe", "")
        # What a killed run left there may be damaged.
        shutil.rmtree(folder / CACHE, ignore_errors=True)
        forget_errors(folder, (key for cells in pending.values() for key in cells))
        needed = sum(map(len, pending.values())) + sum(len(group.models(shared)) for group in pending)
        with crew(partial(CellWorker, work), device=work.device, jobs=min(jobs, needed), ray=ray) as do:
            # Heads share the features of their backbone: this process computes them once, while the others start.
            train = partial(_train_here, shared) if grid.freeze_backbone and ray is None else do
            # Training a seed's original anew makes cells of its other requests stale, so look until nothing is left.
            while pending:
                made |= _make(pending, shared, train, do, f"bench {grid.name}", progress=progress)
                broken = read_errors(folder, made)
                left = _pending(groups, shared, without=broken.keys())
                if left == pending:
                    raise PourError(f"The cells under {folder} were written but are not what was asked for; remove it.")
                pending = left
    if broken:
        first = min(broken)
        raise PourError(
            f"Cells broke off with an error of their own and were not kept ({len(broken)}), {first.row} of seed "
            f"{first.seed} with {broken[first]!r}. The others are there; what happened stands in "
            f"{folder / error_path(first)}, and the same command tries again."
        )
    return Outcome(out=folder, done=len(made), kept=total - len(made), failed=tuple(_failures(folder, groups)))


def claim(shared: SharedModels) -> None:
    """Say whose results the store holds; a new folder only once its data, network and precision are found good."""
    run = Run(device="cpu", precision=shared.precision)
    if read_experiment(shared.out) is None:
        with run.seeded():
            (shared.backbone or shared).build()
    write_experiment(shared.out, shared.experiment)


def _say_where_tuning_saw_the_test(asked: Experiment) -> None:
    """Warn of rows whose options were chosen on a class or a seed that is asked for."""
    shown = {label for request in asked.forget for label in request}
    classes = sorted(shown & {label for row in asked.rows for label in row.tuned_on})
    seeds = sorted({row.tuned_with for row in asked.rows if row.tuned_with is not None} & set(asked.seeds))
    if classes or seeds:
        what = f"class {classes[0]}" if classes else f"seed {seeds[0]}"
        warnings.warn(
            f"The options of the tuned rows were chosen on {what}; they are no fair test of it.", stacklevel=3
        )


def _refuse_to_untune(asked: Experiment, out: Path) -> None:
    """Raise where a row that was tuned would be replaced by one that was not, as without ``--tuning`` it would be."""
    untuned = {row.name: row for row in asked.rows if row.setting == "tuned" and row.note.startswith(NOT_TUNED)}
    places = product(asked.forget, asked.seeds, untuned)
    for cell in (read_cell(out, CellKey(request, seed, row)) for request, seed, row in places):
        if cell is None or cell.note.startswith(NOT_TUNED):
            continue
        if cell.setup["options"] != cell_setup(asked, untuned[cell.key.row], cell.key)["options"]:
            raise UsageError(
                f"{cell.key.row} of seed {cell.key.seed} under {out} was tuned, and one that was not would replace it; "
                "give the folder of its tuning (--tuning), or another one for the results (--out)."
            )


def _make(
    pending: dict[_Group, list[CellKey]],
    shared: SharedModels,
    train: Crew[ModelKey | CellKey],
    do: Crew[ModelKey | CellKey],
    description: str,
    *,
    progress: bool,
) -> set[CellKey]:
    """Make the cells of every group, its models first."""
    made: set[CellKey] = set()
    done, total = 0, len(_models(pending, shared)) + sum(map(len, pending.values()))
    with ProgressBar(total, description, enabled=progress) as bar:
        batches = _batches(list(pending), shared)
        training = train(_models(batches[0], shared))
        for batch, following in zip(batches, [*batches[1:], []], strict=True):
            for key in training:
                done += 1
                bar.update(min(done, total), note=f"trained {key.path.stem}, seed {key.seed}")
            # Asked again, because new models make cells stale that were good before.
            cells = [key for group in batch for key in group.pending(shared)]
            making = do(sorted(cells, key=partial(_turn, shared.experiment)))
            # Whoever finds no cell left begins with the models of the next seed, and waits for nobody.
            training = train(_models(following, shared))
            for key in making:
                made.add(key)  # type: ignore[arg-type]
                done += 1
                bar.update(min(done, total), note=f"{key.path.stem}, seed {key.seed}")
            shutil.rmtree(shared.out / CACHE, ignore_errors=True)
    return made


def _models(groups: Iterable[_Group], shared: SharedModels) -> list[ModelKey]:
    """What has to be trained for ``groups``; requests of one seed share its original."""
    return list(dict.fromkeys(key for group in groups for key in group.models(shared)))


def _turn(experiment: Experiment, key: CellKey) -> tuple[int, int]:
    """When a cell of a batch is made: seed by seed where there are several, and what takes longest first.

    Those that walk over the retained images take longest, most of all in the common setting with its 20 epochs; were
    they last, all jobs would wait for one. The references go before, because every audit needs what theirs keep.
    """
    row = next(row for row in experiment.rows if row.name == key.row)
    if row.method is None:
        return key.seed, 0
    if "retain" not in get_method(row.method).needs:
        return key.seed, 3
    return key.seed, 1 if row.setting == "common" else 2


def _train_here(shared: SharedModels, keys: Iterable[ModelKey | CellKey]) -> Iterator[ModelKey | CellKey]:
    for key in keys:
        if isinstance(key, ModelKey):
            shared.train(key)
        yield key


def _batches(groups: list[_Group], shared: SharedModels) -> list[list[_Group]]:
    """What is worked on at once: one seed after the other, so that a stopped grid has whole ones.

    Heads on a frozen backbone take seconds, and waiting for the last cell of each seed would take longer than they do.
    """
    return [groups] if shared.experiment.freeze_backbone else [[group] for group in groups]


@dataclass(frozen=True)
class _Group:
    """The cells of one seed and one request: they share three models."""

    forget: tuple[int, ...]
    seed: int
    rows: tuple[Row, ...]

    def __hash__(self) -> int:
        return hash((self.forget, self.seed))

    def models(self, shared: SharedModels) -> list[ModelKey]:
        """The models that have to be trained first."""
        keys = [ModelKey.of(self.seed, role, self.forget) for role in ROLES]
        return [key for key in keys if shared.ready(key) is None]

    def pending(self, shared: SharedModels) -> list[CellKey]:
        """The cells that are missing, damaged, of other options, images or models, in the order of the rows."""
        keys = {CellKey(self.forget, self.seed, row.name): row for row in self.rows}
        found = {key: read_cell(shared.out, key) for key in keys}
        good = {
            key: cell
            for key, cell in found.items()
            if cell is not None
            and cell.setup == cell_setup(shared.experiment, keys[key], key, **shared.experiment.start)
            and shared.precision in (None, cell.precision)
            and shared.data_here in (None, cell.data)
        }
        there = {role: shared.ready(ModelKey.of(self.seed, role, self.forget)) for role in ROLES}
        # Without its original a seed was made elsewhere; what lies in its folder is the ceiling of the seed before.
        here = there["original"] is not None
        for role, on_disk in there.items():
            digests = {cell.models[role] for cell in good.values()}
            if here and on_disk is not None:
                good = {key: cell for key, cell in good.items() if cell.models[role] == on_disk}
            elif len(digests) > 1:
                # Without the model nobody can say which of them is right.
                good = {}
        return [key for key in keys if key not in good]


def _pending(
    groups: Iterable[_Group], shared: SharedModels, *, without: Collection[CellKey] = ()
) -> dict[_Group, list[CellKey]]:
    """The cells that are to be made, by group, but for those that are not to be tried again."""
    found = {group: [key for key in group.pending(shared) if key not in without] for group in groups}
    return {group: cells for group, cells in found.items() if cells}


def _requests(forget: Sequence[int | str | Sequence[int | str]], shared: SharedModels) -> tuple[tuple[int, ...], ...]:
    listed = [[request] if isinstance(request, int | str) else list(request) for request in forget]
    dataset = shared.dataset
    # In which order classes are forgotten together makes no difference.
    return tuple(
        tuple(sorted(resolve_classes(request, num_classes=dataset.num_classes, class_names=dataset.classes)))
        for request in listed
    )


def _failures(out: Path, groups: Sequence[_Group]) -> list[str]:
    """A sentence for each failed cell; it names the classes where there are several requests."""
    several = len({group.forget for group in groups}) > 1
    cells: list[Cell | None] = [
        read_cell(out, CellKey(group.forget, group.seed, row.name)) for group in groups for row in group.rows
    ]
    return [
        f"{cell.key.row}{_forgotten(cell) if several else ''}, seed {cell.key.seed}: {cell.failed}"
        for cell in cells
        if cell is not None and cell.failed is not None
    ]


def _forgotten(cell: Cell) -> str:
    names = cell.forgotten_names
    return f", {'class' if len(names) == 1 else 'classes'} {', '.join(names)}"
