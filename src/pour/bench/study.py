"""Measure the paper's account of unlearning: the terms of the bound per method, and the cost of forgetting a class."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from scipy.stats import spearmanr

from pour._io import write_text
from pour._progress import ProgressBar
from pour._provenance import circumstances
from pour._records import Json, Scalar, encode, read, record
from pour.bench.cell import attempt, make_iterative, slower
from pour.bench.grid import claim, requests_of
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.trajectory import Trajectory, follow
from pour.data.draws import stratified_rows
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.geometry.discrepancy import energy_distance, median_bandwidth, mmd
from pour.metrics.predictions import confusion_matrix
from pour.models.tap import extract_features
from pour.report.figures.saving import save_figure
from pour.report.figures.study import draw_study
from pour.training.run import Run, resolve_device
from pour.training.tasks.classify import Classify
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from pour.bench.experiment import Experiment
    from pour.data.dataset import ImageDataset
    from pour.training.run import Precision

__all__ = ["FOLLOWED", "ClassSeparation", "SeparationStudy", "run_study", "separation_study"]

FOLLOWED = ("pour-d", "gradient-ascent", "delete")
"""Methods that are measured during their training."""
SEPARATED = ("pour-p", *FOLLOWED)
"""Methods that forget every class on its own."""
# The energy distance keeps growing with the distance of two classes; the kernel of MMD levels off.
_METRIC = "energy"
# The number of pairs grows with the square of the number of images.
_IMAGES = 2000


@record()
class ClassSeparation:
    """One class: its distance from the others in the original, and the cost of forgetting it."""

    label: int
    name: str
    mmd: float
    """K(P_u, P_n) of the original's test features by true class; nearly the same for all classes after collapse."""
    energy: float
    """K(P_u, P_n) with the square root of the energy distance."""
    nearest: str
    """Name of the nearest retained class by energy distance."""
    nearest_energy: float
    acc_r_before: float
    """Test accuracy of the original on the other classes."""
    methods: dict[str, dict[str, float] | None]
    """Values by method: `acc_r`, `acc_f` and `acc_r_change` on test images, and the factor of the learning rates
    (`rate_factor`). None if the method diverged with every factor."""


@record()
class SeparationStudy:
    """All classes of a dataset, each forgotten on its own."""

    dataset: str
    seed: int
    classes: tuple[ClassSeparation, ...]
    correlation: dict[str, float | None]
    """Spearman's rank correlation, by method, of the separation (energy) and the change of the retained accuracy."""


@record(kw_only=False)
class StudyFile:
    """File of one result of a study."""

    setup: dict[str, Json]
    """Models, options and settings that decide the result."""
    result: Trajectory | SeparationStudy
    circumstances: dict[str, Scalar | dict[str, str]]


def run_study(
    experiment: Experiment | str,
    out: str | Path,
    *,
    seed: int = 0,
    looks: int = 20,
    classes: Sequence[int] | None = None,
    root: str | Path | None = None,
    device: str | None = None,
    precision: Precision | None = None,
    progress: bool = True,
) -> Path:
    """Measure POUR-D, gradient ascent and DELETE in the terms of the bound, and forget every class with each method.

    The models are read from the store at `out`, and missing models are trained. The options are taken from the tuned
    rows. If a method diverges, its learning rates are divided by 3, and then by 9. Results of the same models and
    options are kept.

    Args:
        experiment: A built-in experiment by name, or your own. The study follows its first request.
        out: Folder of `run_experiment`.
        seed: Seed of the models and of every run.
        looks: Number of measurements during each method's training.
        classes: Classes that are forgotten on their own; by default all.
        root: Data folder.
        device: Device of the computation.
        precision: fp32 or bf16; by default the precision of the stored cells and models.
        progress: Show progress bars.

    Returns:
        Folder `study` in `out`, with the results and the figure.
    """
    if looks < 1:
        raise UsageError(f"A study must look at least once, but looks is {looks}.")
    shared = SharedModels.open(experiment, out, root, str(resolve_device(device)), precision)
    grid, folder = shared.experiment, shared.out / "study"
    if not shared.task.one_label:
        raise UsageError(
            f"The study compares one feature vector per sample, but a sample of {grid.name} has several; give an "
            "experiment on images."
        )
    options = {method: _options(grid, method) for method in SEPARATED}
    # Defaults are included, so that a default that changes later makes the results again.
    resolved = {method: make_method(method, **values).stored_options() for method, values in options.items()}
    run = Run(seed=seed, device=shared.device, precision=shared.precision, progress=progress)
    claim(shared)
    forget = requests_of(shared)[0]
    keys = [ModelKey.of(seed, role, forget) for role in ("original", "retrained")]
    for key in keys:
        shared.train(key)
    original, retrained = (shared.load(key) for key in keys)
    digests = {"original": original.digest, "retrained": retrained.digest}
    setup = {"dataset": grid.dataset, "models": digests, "seed": seed}
    splits = Splits.of(shared.dataset, list(forget))
    trajectories: dict[str, Trajectory] = {}
    for method in FOLLOWED:
        every = max(1, _steps(method, options[method], splits) // looks)
        trajectories[method] = _stored(
            folder / f"trajectory-{method}.json",
            {**setup, "options": resolved[method], "every": every, "forget": forget},
            partial(
                _follow_slower, original.model, retrained.model, splits, method, options[method], looks, every, run
            ),
            run,
        )
    labels = range(shared.dataset.num_classes) if classes is None else classes
    separation: SeparationStudy = _stored(
        folder / "separation.json",
        {**setup, "options": resolved, "classes": tuple(labels)},
        partial(separation_study, original.model, shared.dataset, options, classes=labels, run=run),
        run,
    )
    figure = draw_study(
        {method: _series(trajectory) for method, trajectory in trajectories.items()},
        {method: _points(separation.classes, method) for method in SEPARATED},
        separation.correlation,
    )
    for kind in ("svg", "png"):
        save_figure(figure, folder / f"study.{kind}")
    return folder


def _stored(path: Path, setup: dict[str, Any], compute: Callable[[], Any], run: Run) -> Any:
    """Return the result in `path` if it has the same setup, otherwise compute and write it."""
    with contextlib.suppress(UsageError):
        # A file that is missing or damaged raises UsageError.
        file = read(StudyFile, path)
        if encode(file.setup, sort_keys=True) == encode(setup, sort_keys=True):
            return file.result
    file = StudyFile(setup, compute(), circumstances(run.torch_device, run.precision))
    write_text(path, encode(file, indent=1) + "\n")
    return file.result


def _options(grid: Experiment, method: str) -> dict[str, Any]:
    """Return the options of the experiment's row of a method: the tuned row, otherwise the paper's form."""
    rows = [row for row in grid.rows if row.method == method and row.setting in ("tuned", "closed form")]
    if not rows:
        raise UsageError(f"{grid.name} has no row of {method}, which the study needs; add it to the experiment.")
    # The last closed form is the paper's own, see CLOSED_FORM. A second tuned row has a name of its own.
    tuned = [row for row in rows if row.name == f"{method}-tuned"]
    return dict((tuned or rows)[-1].options)


def _steps(method: str, options: Mapping[str, Any], splits: Splits) -> int:
    """Return the number of optimisation steps of a method."""
    iterative = make_iterative(method, options)
    batches = -(-len(splits.forget_train) // iterative.batch_size)
    return iterative.as_recipe(lr=iterative.lr or 1.0).total_steps(batches)


def _follow_slower(
    original: nn.Module,
    retrained: nn.Module,
    splits: Splits,
    method: str,
    options: Mapping[str, Any],
    looks: int,
    every: int,
    run: Run,
) -> Trajectory:
    """Follow a method at the first learning rate at which it does not diverge, otherwise at the smallest.

    A method that stops long before its last step is followed again with a look after fewer steps.
    """
    for _, slow in slower(method, options):
        trajectory = follow(original, retrained, splits, method, every=every, run=run, **slow)
        if trajectory.failed is None:
            break
    finer = max(1, trajectory.looks[-1].step // looks)
    if finer < every:
        trajectory = follow(original, retrained, splits, method, every=finer, run=run, **slow)
    return trajectory


def separation_study(
    original: nn.Module,
    dataset: ImageDataset,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    classes: Sequence[int],
    run: Run,
) -> SeparationStudy:
    """Forget each class on its own, and compare the cost with the distance of the class from the others.

    No retrained model is needed: the distances are those of the original, as in the paper's appendix.

    Args:
        original: Model that knows all classes.
        dataset: Its data.
        methods: Options by the name of the method.
        classes: Indices of the classes.
        run: Seed, device and precision.
    """
    if not methods or not classes:
        raise UsageError("A study of separation needs at least one method and one class.")
    test = dataset.splits["test"]
    tapped = extract_features(original, Classify().batches(test, run), device=run.torch_device)
    before = confusion_matrix(tapped.scores, tapped.labels, num_classes=dataset.num_classes)
    rows = torch.as_tensor(stratified_rows(test.labels, _IMAGES, run.seed), device=tapped.labels.device)
    features, labels = tapped.features[rows].flatten(1).double(), tapped.labels[rows]
    # One kernel for all classes makes their distances comparable.
    bandwidth = median_bandwidth(features)
    separations: list[ClassSeparation] = []
    with ProgressBar(len(classes) * len(methods), "separation", enabled=run.progress) as bar:
        for label in classes:
            of_class, of_others = features[labels == label], features[labels != label]
            distances = {
                other: float(energy_distance(of_class, features[labels == other]))
                for other in range(dataset.num_classes)
                if other != label
            }
            nearest = min(distances, key=distances.__getitem__)
            acc_r, _ = _accuracies(before, label)
            costs: dict[str, dict[str, float] | None] = {}
            for method, options in methods.items():
                costs[method] = _cost(original, dataset, label, method, options, run, acc_r)
                bar.update(len(separations) * len(methods) + len(costs), note=f"{dataset.classes[label]}, {method}")
            separations.append(
                ClassSeparation(
                    label=label,
                    name=dataset.classes[label],
                    mmd=float(mmd(of_class, of_others, bandwidth=bandwidth)),
                    energy=float(energy_distance(of_class, of_others)),
                    nearest=dataset.classes[nearest],
                    nearest_energy=distances[nearest],
                    acc_r_before=acc_r,
                    methods=costs,
                )
            )
    correlation = {method: rank_correlation(separations, method) for method in methods}
    return SeparationStudy(dataset=dataset.name, seed=run.seed, classes=tuple(separations), correlation=correlation)


def _cost(
    original: nn.Module,
    dataset: ImageDataset,
    label: int,
    method: str,
    options: Mapping[str, Any],
    run: Run,
    acc_r_before: float,
) -> dict[str, float] | None:
    """Return the accuracies after forgetting a class, with the first factor of the rates that does not diverge."""
    request = ForgetRequest.of(Splits.of(dataset, [label]))
    tried = attempt(method, options, original, request, replace(run, progress=False), slow_down=True)
    if tried.model is None:
        return None
    acc_r, acc_f = _accuracies(Classify().answers(tried.model, dataset.splits["test"], run), label)
    change = acc_r - acc_r_before
    return {"acc_r": acc_r, "acc_f": acc_f, "acc_r_change": change, "rate_factor": tried.rate_factor}


def _accuracies(answers: Tensor, label: int) -> tuple[float, float]:
    """Return the accuracies on the other classes and on `label`, from counts by true and predicted class."""
    right, total = answers.diagonal().double(), answers.sum(dim=1).double()
    others = torch.arange(len(total), device=total.device) != label
    return (right[others].sum() / total[others].sum()).item(), (right[label] / total[label]).item()


def rank_correlation(classes: Iterable[ClassSeparation], method: str) -> float | None:
    """Return Spearman's correlation of separation and change of accuracy.

    Return None for fewer than three classes, or if all have the same value.
    """
    points = _points(classes, method)
    energies, changes = [energy for _, energy, _ in points], [change for _, _, change in points]
    if len(points) < 3 or 1 in (len(set(energies)), len(set(changes))):
        return None
    return float(spearmanr(energies, changes).statistic)


def _points(classes: Iterable[ClassSeparation], method: str) -> list[tuple[str, float, float]]:
    """Return name, separation and change of the retained accuracy of each class, without classes that diverged."""
    costs = [(entry, entry.methods.get(method)) for entry in classes]
    return [(entry.name, entry.energy, cost["acc_r_change"]) for entry, cost in costs if cost is not None]


def _series(trajectory: Trajectory) -> dict[str, list[float]]:
    """Return the steps, alpha and the terms of the bound at all looks. A term without a value is NaN."""
    series: dict[str, list[float]] = {"steps": [look.step for look in trajectory.looks]}
    for name in ("alpha", "separation", "forgotten", "retained", "total"):
        values = [look.terms[_METRIC][name] for look in trajectory.looks]
        series[name] = [math.nan if value is None else float(value) for value in values]
    return series
