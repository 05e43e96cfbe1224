"""The work of one cell: unlearn, audit, keep; and of one shared model."""

from __future__ import annotations

import json
import math
import platform
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pour._io import write_text
from pour._provenance import circumstances
from pour._version import __version__
from pour.auditing.audit import audit
from pour.bench.attempt import Attempt, attempt
from pour.bench.selection import relative_change
from pour.bench.shared_models import ModelKey, SharedModel, SharedModels, SharedRole
from pour.bench.store import CELLS, Cell, CellKey, write_cell
from pour.data.splits import Splits
from pour.errors import PourError, UsageError
from pour.models.history import history
from pour.training.run import Run
from pour.unlearning.registry import get_method
from pour.unlearning.request import ForgetRequest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.bench.experiments import Experiment, Row
    from pour.bench.segmentation_experiment import SceneExperiment
    from pour.training.run import Precision

__all__ = [
    "CACHE",
    "ROLES",
    "CellWorker",
    "Work",
    "cell_setup",
    "error_path",
    "forget_errors",
    "measured",
    "read_errors",
]

ROLES: tuple[SharedRole, ...] = ("original", "retrained", "ceiling")
CACHE = "cache"
"""Where a store keeps the shared models' features while their cells are made."""
ERRORS = "errors"
"""Where it keeps what happened to cells that broke off."""
# Methods that compare with unseen images get a tenth of the training images, which they then do not train on.
_VALIDATION = 0.1


@dataclass(frozen=True, kw_only=True)
class Work:
    """What every worker of a grid has to know."""

    experiment: Experiment
    out: Path
    root: Path | None
    device: str | None
    precision: Precision | None
    compile: bool = False


def cell_setup(experiment: Experiment | SceneExperiment, row: Row, key: CellKey, **more: Any) -> dict[str, Any]:
    """What decides a cell's result, as its file says it; ``more`` is what only some experiments have."""
    setup = {
        "dataset": experiment.dataset,
        "architecture": experiment.architecture,
        "recipe": asdict(experiment.recipe),
        "forgotten": list(key.forget),
        "seed": key.seed,
        "row": row.name,
        "method": row.method,
        "setting": row.setting,
        "options": row.resolved(),
        **more,
    }
    plain: dict[str, Any] = json.loads(json.dumps(setup))
    return plain


def error_path(key: CellKey) -> Path:
    """Where a store says what happened to a cell that broke off."""
    return Path(ERRORS) / key.path.relative_to(CELLS).with_suffix(".txt")


def forget_errors(out: Path, keys: Iterable[CellKey]) -> None:
    """Remove what was said of cells that are to be made now."""
    for key in keys:
        (out / error_path(key)).unlink(missing_ok=True)


def read_errors(out: Path, keys: Iterable[CellKey]) -> dict[CellKey, str]:
    """The last line of what happened to those of the cells that broke off."""
    found = {key: out / error_path(key) for key in keys}
    there = {key: path.read_text(encoding="utf-8") for key, path in found.items() if path.is_file()}
    return {key: text.strip().splitlines()[-1] for key, text in there.items()}


class CellWorker:
    """Does tasks one after the other, and keeps data and models in memory between them."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._shared = SharedModels(work.experiment, work.out, work.root, work.device, work.precision)
        self._rows = {row.name: row for row in work.experiment.rows}
        self._loaded: dict[tuple[object, ...], SharedModel] = {}

    def prepare(self) -> None:
        """Read the data and the backbone, and wake the device."""
        self._shared.prepare()
        torch.zeros(1, device=self._shared.device)

    def do(self, task: ModelKey | CellKey) -> None:
        """Train a shared model, or make a cell."""
        if isinstance(task, ModelKey):
            self._shared.train(task)
            return
        try:
            self._make_cell(task)
        except PourError:
            raise
        except Exception:
            # A method that breaks off, be it for want of memory, costs its own cell and not the rest of the grid.
            write_text(self._work.out / error_path(task), traceback.format_exc())

    def _make_cell(self, key: CellKey) -> None:
        row = self._rows[key.row]
        models = self._models(key)
        splits = Splits.of(self._shared.dataset, list(key.forget))
        run = Run(
            seed=key.seed,
            device=self._work.device,
            precision=self._work.precision,
            progress=False,
            compile=self._work.compile,
        )
        started = time.perf_counter()
        made = _Made.by(row, models, splits, self._shared, run)
        between = time.perf_counter()
        tried, report = made.attempt, None
        failed = tried.failed
        if tried.model is not None:
            report, failed = self._audit(row, key, tried.model, models, splits)
        seconds = {"unlearn": between - started, "audit": time.perf_counter() - between}
        cell = Cell(
            setup=cell_setup(self._work.experiment, row, key, **self._work.experiment.start),
            models={role: found.digest for role, found in models.items()}
            | ({} if report is None else {"unlearned": report.models["unlearned"].digest}),
            data=self._shared.data_digest,
            precision=str(run.precision),
            versions={"pour": __version__, "torch": torch.__version__, "python": platform.python_version()},
            family=row.family,
            needs=() if row.method is None else get_method(row.method).needs,
            note=row.note,
            tuned_on=row.tuned_on,
            tuned_with=row.tuned_with,
            forgotten_names=splits.forgotten_names,
            failed=failed,
            warnings=tried.warnings,
            rate_factor=tried.rate_factor,
            steps=made.steps,
            weight_change=made.weight_change,
            **({} if report is None else measured(report)),
        )
        surroundings = {"seconds": seconds, "compiled": run.compile, "host": platform.node()}
        surroundings |= circumstances(run.torch_device, run.precision)
        write_cell(self._work.out, cell, surroundings, None if report is None else report.to_json() + "\n")

    def _models(self, key: CellKey) -> dict[SharedRole, SharedModel]:
        keys = {role: ModelKey.of(key.seed, role, key.forget) for role in ROLES}
        # A model that was trained again while this worker lived must not be taken from its memory.
        versions = {role: self._shared.version(model_key) for role, model_key in keys.items()}
        self._loaded = {
            versions[role]: self._loaded.get(versions[role]) or self._shared.load(keys[role]) for role in ROLES
        }
        return {role: self._loaded[versions[role]] for role in ROLES}

    def _audit(
        self,
        row: Row,
        key: CellKey,
        model: nn.Module,
        models: Mapping[SharedRole, SharedModel],
        splits: Splits,
    ) -> tuple[AuditReport | None, str | None]:
        try:
            report = audit(
                original=models["original"].model,
                unlearned=model,
                # The second retrained model is no reference for itself.
                retrained=[models["retrained"].model, *([] if row.name == "ceiling" else [models["ceiling"].model])],
                data=splits,
                cache=self._work.out / CACHE,
                seed=key.seed,
                device=self._work.device,
                progress=False,
            )
        except UsageError as error:
            if row.method is None:
                raise
            return None, str(error)
        return report, None


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What came of a row's method, and what that took."""

    attempt: Attempt
    steps: int = 0
    weight_change: float | None = None

    @classmethod
    def by(
        cls,
        row: Row,
        models: Mapping[SharedRole, SharedModel],
        splits: Splits,
        shared: SharedModels,
        run: Run,
    ) -> _Made:
        original = models["original"].model
        if row.method is None:
            return cls(attempt=Attempt(model=models[row.name].model))  # type: ignore[index]
        needs = get_method(row.method).needs
        if "validation" in needs and splits.validation is None:
            splits = splits.holdout(_VALIDATION, run.seed)
        request = replace(ForgetRequest.of(splits), build=shared.build, recipe=shared.experiment.recipe)
        tried = attempt(row, original, request, run)
        if tried.model is None:
            return cls(attempt=tried)
        change = relative_change(original, tried.model)
        if not math.isfinite(change):
            return cls(attempt=replace(tried, model=None, failed="The weights are not finite."))
        return cls(attempt=tried, steps=history(tried.model)[-1].steps or 0, weight_change=change)


def measured(report: AuditReport) -> dict[str, Any]:
    """What a cell keeps of an audit: the unlearned model's side of it."""
    names = report.values()
    keyed = dict(zip(names, report.lines, strict=True))
    return {
        "values": {name: line.unlearned for name, line in keyed.items()},
        "verdicts": {name: line.verdict for name, line in keyed.items()},
        "discrepancies": report.discrepancies,
        "collapse": dict(report.collapse.get("unlearned", {})),
        "answers": tuple(report.answers.get("unlearned", ())),
    }
