"""The paper's account of unlearning, tested: three terms along each method, and what forgetting each class costs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import write_text
from pour._provenance import circumstances
from pour.bench.attempt import slower
from pour.bench.experiments import Experiment, get_experiment
from pour.bench.runner import claim
from pour.bench.separation import separation_study
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store_identity import check_folder, settled_precision
from pour.bench.trajectory import follow
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.report.figures.saving import save_figure
from pour.report.figures.study import MethodPath, SeparationPoint, draw_study
from pour.training.run import Run
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from pour.training.run import Precision

__all__ = ["FOLLOWED", "Study", "run_study"]

FOLLOWED = ("pour-d", "gradient-ascent", "delete")
"""The methods whose steps are followed."""
SEPARATED = ("pour-p", *FOLLOWED)
"""The methods that forget every class on its own."""
# The energy distance does not level off where classes are far apart, as the kernel of MMD does.
_METRIC = "energy"


@dataclass(frozen=True, kw_only=True)
class Study:
    """What was written where."""

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
    """Follow POUR-D, gradient ascent and DELETE in the terms of the bound, and forget every class by each method.

    The models are those of the store at ``out``, trained where they are missing; the options those of the tuned rows,
    at a third or a ninth of their learning rates where a method diverges. What is there already, of the same models and
    options, is kept. Everything goes to ``out/study``.

    Args:
        experiment: one of ours by name, or your own; its first request is the one that is followed.
        out: the folder of :func:`run_experiment`.
        seed: of the models and of every run.
        looks: how often each method's model is measured on its way.
        classes: only these classes are forgotten, each on its own; by default all.
        root: the data folder.
        device: where to compute.
        precision: fp32 or bf16; by default that of the cells and models that are there.
        progress: show progress bars.
    """
    if looks < 1:
        raise UsageError(f"A study must look at least once, but looks is {looks}.")
    grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
    where, folder = str(Run(seed=seed, device=device, precision=precision).torch_device), Path(out).resolve()
    check_folder(folder)
    settled = settled_precision(folder, precision)
    shared = SharedModels(grid, folder, None if root is None else Path(root), where, settled)
    options = {method: _options(grid, method) for method in SEPARATED}
    # With the defaults, so that one that changes later is noticed.
    resolved = {method: make_method(method, **chosen).stored_options() for method, chosen in options.items()}
    claim(shared)
    forget = grid.forget[0]
    keys = {role: ModelKey.of(seed, role, forget) for role in ("original", "retrained")}
    for key in keys.values():
        shared.train(key)
    models = {role: shared.load(key) for role, key in keys.items()}
    kept = _Kept(shared, {role: model.digest for role, model in models.items()}, seed)
    splits = Splits.of(shared.dataset, list(forget))
    common: dict[str, Any] = {
        "seed": seed,
        "device": shared.device,
        "precision": settled,
        "progress": progress,
    }
    original, retrained = models["original"].model, models["retrained"].model
    paths: dict[str, MethodPath] = {}
    for method in FOLLOWED:
        every = max(1, _steps(method, options[method], splits) // looks)
        found = kept(
            f"trajectory-{method}",
            {"options": resolved[method], "every": every, "forget": list(forget)},
            lambda method=method, every=every: _followed(  # type: ignore[misc]
                original, retrained, splits, method, options[method], looks, every=every, **common
            ),
        )
        paths[method] = _path(found)
    label_range = list(range(shared.dataset.num_classes) if classes is None else classes)
    separation = kept(
        "separation",
        {"options": resolved, "classes": label_range},
        lambda: separation_study(original, shared.dataset, options, classes=label_range, **common).to_dict(),
    )
    return Study(
        trajectories={method: kept.path(f"trajectory-{method}") for method in FOLLOWED},
        separation=kept.path("separation"),
        figures=_draw(kept.folder, paths, separation),
    )


class _Kept:
    """Results in files that say what they were made from; made again where that has changed."""

    def __init__(self, shared: SharedModels, models: Mapping[str, str], seed: int) -> None:
        self.folder = shared.out / "study"
        self._identity = {"dataset": shared.experiment.dataset, "models": dict(models), "seed": seed}
        run = Run(seed=seed, device=shared.device, precision=shared.precision)
        self._circumstances = circumstances(run.torch_device, run.precision)

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def __call__(self, name: str, setup: Mapping[str, Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        wanted = json.loads(json.dumps({**self._identity, **setup}))
        try:
            stored = json.loads(self.path(name).read_text(encoding="utf-8"))
            if stored["setup"] == wanted:
                result: dict[str, Any] = stored["result"]
                return result
        except (OSError, ValueError, KeyError, TypeError):
            # Missing or damaged: made again below.
            pass
        result = json.loads(json.dumps(make(), allow_nan=False))
        content = {"setup": wanted, "result": result, "circumstances": self._circumstances}
        write_text(self.path(name), json.dumps(content, indent=1) + "\n")
        return result


def _followed(
    original: nn.Module,
    retrained: nn.Module,
    splits: Splits,
    method: str,
    options: Mapping[str, Any],
    looks: int,
    *,
    every: int,
    **how: Any,
) -> dict[str, Any]:
    """A method's way at the first learning rate at which it does not diverge, else at the smallest.

    One that ends long before its last step is followed once more, with as many looks on the way that it has.
    """
    for _, chosen in slower(method, options):
        found = follow(original, retrained, splits, method, every=every, **how, **chosen)
        if found.failed is None:
            break
    finer = max(1, found.looks[-1].step // looks)
    if finer < every:
        found = follow(original, retrained, splits, method, every=finer, **how, **chosen)
    return found.to_dict()


def _options(grid: Experiment, method: str) -> dict[str, Any]:
    """What the experiment's own row of the method uses: tuned where there is a choice, else in the paper's form."""
    rows = [row for row in grid.rows if row.method == method and row.setting in ("tuned", "closed form")]
    if not rows:
        raise UsageError(f"{grid.name} has no row of {method}, which the study needs; add it to the experiment.")
    # Of several closed forms the paper's own comes last, see CLOSED_FORM. Of several tuned rows, the others have names
    # of their own.
    tuned = [row for row in rows if row.name == f"{method}-tuned"]
    return dict((tuned or rows)[-1].options)


def _steps(method: str, options: Mapping[str, Any], splits: Splits) -> int:
    chosen = make_method(method, **options)
    if not isinstance(chosen, IterativeMethod):
        raise UsageError(f"{method} takes no optimisation steps to follow.")
    batches = -(-len(splits.forget_train.labels) // chosen.batch_size)
    return chosen.recipe(lr=chosen.lr or 1.0).total_steps(batches)


def _path(found: Mapping[str, Any]) -> MethodPath:
    looks = found["looks"]

    def series(name: str) -> tuple[float, ...]:
        # At a boundary, such as all of the class still recognised, some terms have no value.
        values = (look["terms"][_METRIC][name] for look in looks)
        return tuple(math.nan if value is None else float(value) for value in values)

    return MethodPath(
        steps=tuple(look["step"] for look in looks),
        **{name: series(name) for name in ("alpha", "separation", "forgotten", "retained", "total")},
    )


def _draw(folder: Path, paths: Mapping[str, MethodPath], separation: Mapping[str, Any]) -> tuple[Path, ...]:
    points = {
        method: [
            SeparationPoint(name=entry["name"], separation=entry["energy"], change=cost["acc_r_change"])
            for entry in separation["classes"]
            if (cost := entry["methods"].get(method)) is not None
        ]
        for method in SEPARATED
    }
    return tuple(
        save_figure(draw_study(paths, points, separation["correlation"]), folder / f"study.{kind}")
        for kind in ("svg", "png")
    )
