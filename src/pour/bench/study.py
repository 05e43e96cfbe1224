"""Test the paper's account of unlearning: the terms of the bound per method, and the cost of forgetting each class."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from scipy.stats import spearmanr

from pour._io import write_text
from pour._progress import ProgressBar
from pour._provenance import circumstances
from pour._records import Option, Scalar, encode, read, record
from pour.bench.attempt import slower
from pour.bench.experiments import Experiment, get_experiment
from pour.bench.runner import claim
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store_identity import check_folder, settled_precision
from pour.bench.trajectory import Trajectory, follow
from pour.data.draws import stratified_rows
from pour.data.splits import Splits
from pour.errors import DivergenceError, UsageError
from pour.geometry.discrepancy import energy_distance, median_bandwidth, mmd
from pour.models.tap import extract_features
from pour.report.figures.saving import save_figure
from pour.report.figures.study import MethodPath, SeparationPoint, draw_study
from pour.training.run import Run
from pour.training.tasks.classify import evaluation_loader
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, nn

    from pour.data.dataset import ImageDataset
    from pour.training.run import Precision

__all__ = ["FOLLOWED", "ClassSeparation", "SeparationStudy", "Study", "run_study", "separation_study"]

FOLLOWED = ("pour-d", "gradient-ascent", "delete")
"""Methods that are measured during their training."""
SEPARATED = ("pour-p", *FOLLOWED)
"""Methods that forget every class on its own."""
# The energy distance keeps growing with the distance of two classes; the kernel of MMD levels off.
_METRIC = "energy"
# The number of pairs grows with the square of the number of images.
_IMAGES = 2000


@record
@dataclass(frozen=True, kw_only=True)
class ClassSeparation:
    """One class: its distance from the others in the original, and the cost of forgetting it."""

    label: int
    name: str
    mmd: float
    """K(P_u, P_n) of the original's test features by true class; nearly the same for all classes after collapse."""
    energy: float
    """The same with the square root of the energy distance."""
    nearest: str
    """Name of the nearest retained class by energy distance."""
    nearest_energy: float
    acc_r_before: float
    """Test accuracy of the original on the other classes."""
    methods: dict[str, dict[str, float] | None]
    """Values by method: ``acc_r``, ``acc_f`` and ``acc_r_change`` on test images, and the factor of the learning rates
    (``rate_factor``). None if the method diverged with every factor."""


@record
@dataclass(frozen=True, kw_only=True)
class SeparationStudy:
    """All classes of a dataset, each forgotten on its own."""

    dataset: str
    seed: int
    classes: tuple[ClassSeparation, ...]
    correlation: dict[str, float | None]
    """Spearman's rank correlation, by method, of the separation (energy) and the change of the retained accuracy."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Files that a study wrote."""

    trajectories: dict[str, Path]
    separation: Path
    figures: tuple[Path, ...]


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
) -> Study:
    """Measure POUR-D, gradient ascent and DELETE in the terms of the bound, and forget every class with each method.

    The models are those of the store at ``out``; missing ones are trained. The options are those of the tuned rows, at
    a third or a ninth of their learning rates if a method diverges. Results of the same models and options are kept.
    Everything is written to ``out/study``.

    Args:
        experiment: A built-in experiment by name, or your own. The study follows its first request.
        out: Folder of :func:`run_experiment`.
        seed: Seed of the models and of every run.
        looks: Number of measurements during each method's training.
        classes: Classes that are forgotten on their own; by default all.
        root: Data folder.
        device: Device of the computation.
        precision: fp32 or bf16; by default that of the stored cells and models.
        progress: Show progress bars.
    """
    if looks < 1:
        raise UsageError(f"A study must look at least once, but looks is {looks}.")
    grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
    where, folder = str(Run(seed=seed, device=device, precision=precision).torch_device), Path(out).resolve()
    check_folder(folder)
    settled = settled_precision(folder, precision)
    shared = SharedModels(grid, folder, None if root is None else Path(root), where, settled)
    options = {method: _options(grid, method) for method in SEPARATED}
    # Defaults are included, so that a default that changes later makes the results again.
    resolved = {method: make_method(method, **chosen).stored_options() for method, chosen in options.items()}
    claim(shared)
    forget = grid.forget[0]
    keys = {role: ModelKey.of(seed, role, forget) for role in ("original", "retrained")}
    for key in keys.values():
        shared.train(key)
    models = {role: shared.load(key) for role, key in keys.items()}
    original, retrained = models["original"].model, models["retrained"].model
    run = Run(seed=seed, device=where, precision=settled, progress=progress)
    digests = {role: model.digest for role, model in models.items()}
    splits = Splits.of(shared.dataset, list(forget))

    def kept(kind: type[StudyFileT], name: str, setup: Mapping[str, Any], compute: Callable[[], Any]) -> Any:
        wanted = _Setup(dataset=grid.dataset, models=digests, seed=seed, **setup)
        return _kept(kind, folder / "study" / f"{name}.json", wanted, compute, run)

    trajectories: dict[str, Trajectory] = {}
    for method in FOLLOWED:
        every = max(1, _steps(method, options[method], splits) // looks)
        trajectories[method] = kept(
            _TrajectoryFile,
            f"trajectory-{method}",
            {"options": resolved[method], "every": every, "forget": tuple(forget)},
            lambda method=method, every=every: _follow_slower(  # type: ignore[misc]
                original, retrained, splits, method, options[method], looks=looks, every=every, run=run
            ),
        )
    labels = tuple(range(shared.dataset.num_classes) if classes is None else classes)
    separation = kept(
        _SeparationFile,
        "separation",
        {"options": resolved, "classes": labels},
        lambda: separation_study(original, shared.dataset, options, classes=labels, run=run),
    )
    return Study(
        trajectories={method: folder / "study" / f"trajectory-{method}.json" for method in FOLLOWED},
        separation=folder / "study" / "separation.json",
        figures=_draw(folder / "study", trajectories, separation),
    )


@record
@dataclass(frozen=True, kw_only=True)
class _Setup:
    """Everything that decides a result of a study."""

    dataset: str
    models: dict[str, str]
    """Digests of the models by role."""
    seed: int
    options: dict[str, Option | dict[str, Option]]
    every: int | None = None
    forget: tuple[int, ...] = ()
    classes: tuple[int, ...] = ()


@record
@dataclass(frozen=True)
class _TrajectoryFile:
    setup: _Setup
    result: Trajectory
    circumstances: dict[str, Scalar | dict[str, str]]


@record
@dataclass(frozen=True)
class _SeparationFile:
    setup: _Setup
    result: SeparationStudy
    circumstances: dict[str, Scalar | dict[str, str]]


StudyFileT = TypeVar("StudyFileT", _TrajectoryFile, _SeparationFile)


def _kept(kind: type[StudyFileT], path: Path, setup: _Setup, compute: Callable[[], Any], run: Run) -> Any:
    """Return the result in ``path`` if it has the same setup. Otherwise compute and write it."""
    try:
        stored = read(kind, path)
    except UsageError:
        # Missing or damaged.
        pass
    else:
        if stored.setup == setup:
            return stored.result
    result = kind(setup, compute(), circumstances(run.torch_device, run.precision))
    write_text(path, encode(result, indent=1) + "\n")
    return result.result


def _options(grid: Experiment, method: str) -> dict[str, Any]:
    """Return the options of the experiment's row of a method: the tuned row, otherwise the paper's form."""
    rows = [row for row in grid.rows if row.method == method and row.setting in ("tuned", "closed form")]
    if not rows:
        raise UsageError(f"{grid.name} has no row of {method}, which the study needs; add it to the experiment.")
    # Of several closed forms the paper's own comes last, see CLOSED_FORM. A second tuned row has a name of its own.
    tuned = [row for row in rows if row.name == f"{method}-tuned"]
    return dict((tuned or rows)[-1].options)


def _steps(method: str, options: Mapping[str, Any], splits: Splits) -> int:
    """Return the number of optimisation steps of a method."""
    chosen = make_method(method, **options)
    if not isinstance(chosen, IterativeMethod):
        raise UsageError(f"{method} takes no optimisation steps to follow.")
    batches = -(-len(splits.forget_train.labels) // chosen.batch_size)
    return chosen.recipe(lr=chosen.lr or 1.0).total_steps(batches)


def _follow_slower(
    original: nn.Module,
    retrained: nn.Module,
    splits: Splits,
    method: str,
    options: Mapping[str, Any],
    *,
    looks: int,
    every: int,
    run: Run,
) -> Trajectory:
    """Follow a method at the first learning rate at which it does not diverge, otherwise at the smallest.

    A method that stops long before its last step is followed again with a look after fewer steps.
    """
    for _, chosen in slower(method, options):
        found = follow(original, retrained, splits, method, every=every, run=run, **chosen)
        if found.failed is None:
            break
    finer = max(1, found.looks[-1].step // looks)
    if finer < every:
        found = follow(original, retrained, splits, method, every=finer, run=run, **chosen)
    return found


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
    before = _answers(original, dataset, run)
    chosen = torch.as_tensor(stratified_rows(test.labels, _IMAGES, run.seed), device=before.labels.device)
    features, labels = before.features[chosen].flatten(1).double(), before.labels[chosen]
    # One kernel for all classes makes their distances comparable.
    bandwidth = median_bandwidth(features)
    found: list[ClassSeparation] = []
    with ProgressBar(len(classes) * len(methods), "separation", enabled=run.progress) as bar:
        for label in classes:
            of_class, of_others = features[labels == label], features[labels != label]
            distances = {
                other: float(energy_distance(of_class, features[labels == other]))
                for other in range(dataset.num_classes)
                if other != label
            }
            nearest = min(distances, key=distances.__getitem__)
            acc_r = _mean(before.is_right[before.labels != label])
            costs: dict[str, dict[str, float] | None] = {}
            for method, options in methods.items():
                costs[method] = _cost_of(original, dataset, label, method, options, run, acc_r)
                bar.update(len(found) * len(methods) + len(costs), note=f"{dataset.classes[label]}, {method}")
            found.append(
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
    correlation = {method: rank_correlation(found, method) for method in methods}
    return SeparationStudy(dataset=dataset.name, seed=run.seed, classes=tuple(found), correlation=correlation)


def rank_correlation(classes: Sequence[ClassSeparation], method: str) -> float | None:
    """Return Spearman's correlation of separation and change of accuracy.

    Return None for fewer than three classes, or if all have the same value.
    """
    pairs = [(entry.energy, cost["acc_r_change"]) for entry in classes if (cost := entry.methods.get(method))]
    energies, changes = zip(*pairs, strict=True) if pairs else ((), ())
    if len(pairs) < 3 or 1 in (len(set(energies)), len(set(changes))):
        return None
    return float(spearmanr(energies, changes).statistic)


@dataclass(frozen=True)
class _Answers:
    features: Tensor
    is_right: Tensor
    labels: Tensor


def _answers(model: nn.Module, dataset: ImageDataset, run: Run) -> _Answers:
    seen = extract_features(model, evaluation_loader(dataset.splits["test"], run), device=run.torch_device)
    return _Answers(seen.features, seen.scores.argmax(dim=1) == seen.labels, seen.labels)


def _cost_of(
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
    # A run keeps a history, so each method gets its own.
    quiet = Run(seed=run.seed, device=run.device, precision=run.precision, progress=False)
    for factor, chosen in slower(method, options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                after = _answers(carry_out(original, request, make_method(method, **chosen), quiet), dataset, quiet)
            except DivergenceError:
                continue
        acc_r, acc_f = (_mean(after.is_right[side]) for side in (after.labels != label, after.labels == label))
        return {"acc_r": acc_r, "acc_f": acc_f, "acc_r_change": acc_r - acc_r_before, "rate_factor": factor}
    return None


def _mean(values: Tensor) -> float:
    return values.double().mean().item()


def _draw(folder: Path, trajectories: Mapping[str, Trajectory], separation: SeparationStudy) -> tuple[Path, ...]:
    paths = {method: _path(trajectory) for method, trajectory in trajectories.items()}
    points = {
        method: [
            SeparationPoint(name=entry.name, separation=entry.energy, change=cost["acc_r_change"])
            for entry in separation.classes
            if (cost := entry.methods.get(method)) is not None
        ]
        for method in SEPARATED
    }
    figure = draw_study(paths, points, separation.correlation)
    return tuple(save_figure(figure, folder / f"study.{kind}") for kind in ("svg", "png"))


def _path(trajectory: Trajectory) -> MethodPath:
    def series(name: str) -> tuple[float, ...]:
        # Some terms have no value at a boundary, such as a class that is still recognised on all its images.
        values = (look.terms[_METRIC][name] for look in trajectory.looks)
        return tuple(math.nan if value is None else float(value) for value in values)

    return MethodPath(
        steps=tuple(look.step for look in trajectory.looks),
        **{name: series(name) for name in ("alpha", "separation", "forgotten", "retained", "total")},
    )
