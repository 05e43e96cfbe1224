"""Tuning every method of an experiment, on a class and a seed that its tables do not report."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from pour._progress import ProgressBar
from pour._records import read
from pour.bench.executors import crew
from pour.bench.experiments import Experiment, get_experiment
from pour.bench.settings import starting_options
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store_identity import check_folder, model_facts, refuse_other, settled_precision
from pour.bench.tuning import StoredTrial, tune
from pour.data.classes import resolve_classes
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.training.run import resolve_device
from pour.unlearning.registry import get_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pour.bench.selection import Rule, TuningResult
    from pour.training.loop import BatchNormMode
    from pour.training.run import Precision

__all__ = ["TUNED_CLASSES", "TUNING_SEED", "tune_experiment"]

TUNING_SEED = 100
"""Not a seed of any table."""
TUNED_CLASSES: dict[str, tuple[int, ...]] = {"digits": (8,), "cifar10": (4,), "cifar100": (42,), "pathmnist": (3,)}
"""What tuning forgets; not a class of any table."""


def tune_experiment(
    experiment: Experiment | str,
    out: str | Path,
    *,
    methods: Iterable[str] | None = None,
    rule: Rule = "benchmark",
    forget: Sequence[int | str] | None = None,
    seed: int = TUNING_SEED,
    batch_norm: BatchNormMode = "frozen",
    root: str | Path | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    jobs: int = 1,
    compile: bool = False,
    progress: bool = True,
) -> list[TuningResult]:
    """Tune the iterative methods of an experiment with the same budget; resumes where it stopped.

    The original is trained for the tuning's own seed and kept beside the trials.

    Args:
        experiment: one of ours by name, or your own.
        out: Folder for the original and the trials; ``tuning=`` of an experiment reads it.
        methods: only these.
        rule: see :func:`pour.bench.tune`.
        forget: the classes to forget while tuning, by default those of :data:`TUNED_CLASSES`.
        seed: of the original, the hold-out and every trial.
        batch_norm: of every trial. The tables' tuned rows freeze it, which methods need that see forget images alone;
            one that walks over retained images may let it train.
        root: the data folder.
        device: where to compute.
        precision: fp32 or bf16; by default that of the original, where it is there.
        jobs: methods side by side.
        compile: let methods compile the encoders they train.
        progress: show a progress bar.
    """
    grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
    if jobs < 1:
        raise UsageError(f"The number of jobs must be at least 1, but is {jobs}.")
    iterative = list(dict.fromkeys(row.method for row in grid.rows if row.setting == "tuned" and row.method))
    chosen = iterative if methods is None else list(dict.fromkeys(methods))
    odd = [method for method in chosen if method not in iterative]
    if odd:
        raise UsageError(f"{odd[0]} has nothing to tune in {grid.name}; its methods are {', '.join(iterative)}.")
    where, folder = str(resolve_device(device)), Path(out).resolve()
    check_folder(folder)
    _refuse_other_mode(folder, batch_norm)
    settled = settled_precision(folder, precision)
    shared = SharedModels(grid, folder, None if root is None else Path(root), where, settled)
    classes = _classes(grid, shared, forget)
    if reported := _reported(grid, classes, seed):
        raise UsageError(
            f"The tables of {grid.name} report {reported}; tune on others, or the tuned rows would have seen their own "
            "test."
        )
    original = ModelKey(seed, "original")
    kind = {name: value for name, value in shared.identity(original).items() if name not in ("seed", "without")}
    for facts in model_facts(folder):
        # Trials on another network belong to another folder.
        refuse_other(folder, {**facts, "name": grid.name}, kind)
    shared.train(original)
    if jobs == 1:
        tuner = _Tuner(shared, classes, rule, seed, batch_norm, compile=compile, progress=progress)
        return [tuner.tuned(method) for method in chosen]
    start = partial(_Tuner, replace(shared), classes, rule, seed, batch_norm, compile=compile)
    with (
        crew(start, device=where, jobs=min(jobs, len(chosen))) as do,
        ProgressBar(len(chosen), f"tuning {grid.name}", enabled=progress) as bar,
    ):
        # Those that walk over the retained images take longest, and nobody should wait for the last of them.
        longest_first = sorted(chosen, key=lambda method: "retain" not in get_method(method).needs)
        for count, method in enumerate(do(longest_first), start=1):
            bar.update(count, note=method)
    # What the others wrote is read here, not computed again.
    tuner = start()
    return [tuner.tuned(method) for method in chosen]


class _Tuner:
    """Tunes methods one after the other on the same original."""

    def __init__(
        self,
        shared: SharedModels,
        classes: tuple[int, ...],
        rule: Rule,
        seed: int,
        batch_norm: BatchNormMode,
        *,
        compile: bool = False,
        progress: bool = False,
    ) -> None:
        self._shared = shared
        self._rule: Rule = rule
        self._seed = seed
        self._batch_norm = batch_norm
        self._compile = compile
        self._progress = progress
        self._original = shared.load(ModelKey(seed, "original")).model
        self._splits = Splits.of(shared.dataset, list(classes))

    def prepare(self) -> None:
        """Wake the device; the original and the data were read before."""
        torch.zeros(1, device=self._shared.device)

    def do(self, method: str) -> None:
        """Tune a method; its trials and the choice are in its folder."""
        self.tuned(method)

    def tuned(self, method: str) -> TuningResult:
        """What tuning a method chose, read from its folder where it is there."""
        shared = self._shared
        return tune(
            self._original,
            self._splits,
            method,
            rule=self._rule,
            seed=self._seed,
            device=shared.device,
            precision=shared.precision,
            progress=self._progress,
            compile=self._compile,
            build=shared.build,
            recipe=shared.experiment.recipe,
            out=shared.out,
            **{"batch_norm": self._batch_norm, **starting_options(method, shared.experiment.dataset)},
        )


def _refuse_other_mode(folder: Path, batch_norm: BatchNormMode) -> None:
    """Raise where the trials of a folder treat BatchNorm otherwise: each method has one choice there."""
    if batch_norm not in ("frozen", "train"):
        raise UsageError(f"batch_norm must be frozen or train, but is {batch_norm!r}.")
    for path in sorted(folder.glob("*-*/*.json")):
        try:
            options = read(StoredTrial, path).trial.options
        except UsageError:
            # Not a trial, or a damaged one, which tuning repeats.
            continue
        stored = {"name": path.parent.name, "batch_norm": options.get("batch_norm", batch_norm)}
        refuse_other(folder, stored, {"batch_norm": batch_norm})


def _reported(grid: Experiment, classes: tuple[int, ...], seed: int) -> str:
    """What the experiment's own tables show of a tuning's classes and seed; empty where they share nothing."""
    shown = {label for request in grid.forget for label in request}
    found = [f"seed {seed}"] if seed in grid.seeds else []
    found += [f"class {label}" for label in classes if label in shown]
    return " and ".join(found)


def _classes(grid: Experiment, shared: SharedModels, forget: Sequence[int | str] | None) -> tuple[int, ...]:
    if forget is None:
        if grid.name not in TUNED_CLASSES:
            raise UsageError(f"Say which classes tuning {grid.name} should forget (forget=).")
        return TUNED_CLASSES[grid.name]
    dataset = shared.dataset
    return resolve_classes(list(forget), num_classes=dataset.num_classes, class_names=dataset.classes)
