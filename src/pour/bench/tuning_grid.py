"""Tuning every method of an experiment, on a class and a seed that its tables do not report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pour.bench.experiments import Experiment, get_experiment
from pour.bench.settings import starting_options
from pour.bench.shared import ModelKey, SharedModels
from pour.bench.tuning import tune
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.models.classes import resolve_classes
from pour.training.run import resolve_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pour.bench.tuning import Rule, TuningResult
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
    root: str | Path | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> list[TuningResult]:
    """Tune the iterative methods of an experiment with the same budget, BatchNorm frozen; resumes where it stopped.

    The original is trained for the tuning's own seed and kept beside the trials.

    Args:
        experiment: one of ours by name, or your own.
        out: the folder for the original and the trials; :func:`freeze_tuning` and ``tuning=`` read it.
        methods: only these.
        rule: see :func:`pour.bench.tune`.
        forget: the classes to forget while tuning, by default those of :data:`TUNED_CLASSES`.
        seed: of the original, the hold-out and every trial.
        root: the data folder.
        device: where to compute.
        precision: fp32 or bf16.
        progress: show a progress bar for each method.
    """
    grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
    iterative = list(dict.fromkeys(row.method for row in grid.rows if row.setting == "tuned" and row.method))
    chosen = iterative if methods is None else list(methods)
    odd = [method for method in chosen if method not in iterative]
    if odd:
        raise UsageError(f"{odd[0]} has nothing to tune in {grid.name}; its methods are {', '.join(iterative)}.")
    shared = SharedModels(grid, Path(out).resolve(), None if root is None else Path(root), device, precision)
    classes = _classes(grid, shared, forget)
    if seed in grid.seeds or classes in grid.forget:
        raise UsageError(
            f"The tables of {grid.name} report seed {seed} or class {', '.join(map(str, classes))}; tune on others, "
            "or the tuned rows would have seen their own test."
        )
    shared.device = str(resolve_device(device))
    key = ModelKey(seed, "original")
    shared.train(key)
    original = shared.load(key).model
    splits = Splits.of(shared.dataset, list(classes))
    return [
        tune(
            original,
            splits,
            method,
            rule=rule,
            seed=seed,
            device=shared.device,
            precision=precision,
            progress=progress,
            build=shared.build,
            recipe=grid.recipe,
            out=shared.out,
            **{"batch_norm": "frozen", **starting_options(method, grid.dataset)},
        )
        for method in chosen
    ]


def _classes(grid: Experiment, shared: SharedModels, forget: Sequence[int | str] | None) -> tuple[int, ...]:
    if forget is None:
        if grid.name not in TUNED_CLASSES:
            raise UsageError(f"Say which classes tuning {grid.name} should forget (forget=).")
        return TUNED_CLASSES[grid.name]
    dataset = shared.dataset
    return resolve_classes(list(forget), num_classes=dataset.num_classes, class_names=dataset.classes)
