"""Compute and store one cell of a grid: unlearn with the row's method, audit the result, store the values."""

from __future__ import annotations

import json
import math
import platform
import time
import traceback
import warnings
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pour._io import write_text
from pour._provenance import circumstances
from pour._version import __version__
from pour.auditing.audit import audit
from pour.auditing.measurement import Reading
from pour.auditing.pictures import Subject, compute_pictures
from pour.bench.selection import relative_change
from pour.bench.shared_models import ModelKey, SharedModel, SharedModels
from pour.bench.store import CELLS, Cell, CellKey, write_cell
from pour.errors import DivergenceError, PourError, UsageError
from pour.models.history import history
from pour.training.run import Run
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.bench.experiment import Experiment, SharedRole
    from pour.bench.rows import Row

__all__ = [
    "CACHE",
    "Attempt",
    "CellWorker",
    "attempt",
    "cell_setup",
    "error_path",
    "make_iterative",
    "read_errors",
    "slower",
]

CACHE = "cache"
"""Folder of a store for the features of the shared models while cells are computed."""
ERRORS = "errors"
"""Folder of a store for the tracebacks of cells that raised an exception."""
# Factors of tuned learning rates, one after the other, while the method diverges.
_FACTORS = (1 / 3, 1 / 9)


def cell_setup(experiment: Experiment, row: Row, key: CellKey) -> dict[str, Any]:
    """Return the resolved settings that decide a cell's result, as its file contains them."""
    setup = {
        **experiment.cell_identity,
        "forgotten": list(key.forget),
        "seed": key.seed,
        "row": row.name,
        "method": row.method,
        "setting": row.setting,
        "options": row.resolved(),
    }
    plain: dict[str, Any] = json.loads(json.dumps(setup))
    return plain


def error_path(key: CellKey) -> Path:
    """Return the path of a cell's traceback in the store."""
    return Path(ERRORS) / key.path.relative_to(CELLS).with_suffix(".txt")


def read_errors(out: Path, keys: Iterable[CellKey]) -> dict[CellKey, str]:
    """Return the last line of each traceback, by cell."""
    files = {key: out / error_path(key) for key in keys}
    texts = {key: file.read_text(encoding="utf-8") for key, file in files.items() if file.is_file()}
    return {key: text.strip().splitlines()[-1] for key, text in texts.items()}


class CellWorker:
    """Trains models and computes cells, one after the other, and keeps data and models in memory between them."""

    def __init__(self, shared: SharedModels, compile: bool) -> None:
        self._shared = shared
        self._compile = compile
        self._rows = {row.name: row for row in shared.experiment.rows}
        self._loaded: dict[tuple[object, ...], SharedModel] = {}

    def prepare(self) -> None:
        """Read the dataset, build the network, and start the device."""
        self._shared.build()
        self._shared.data_digest  # noqa: B018 - the property keeps its value
        torch.zeros(1, device=self._shared.device)

    def do(self, key: ModelKey | CellKey) -> None:
        """Train a shared model, or compute a cell."""
        if isinstance(key, ModelKey):
            self._shared.train(key)
            return
        try:
            self._compute(key)
        except PourError:
            raise
        except Exception:
            # An exception in a method, such as out of memory, loses only its own cell.
            write_text(self._shared.out / error_path(key), traceback.format_exc())

    def _compute(self, key: CellKey) -> None:
        shared, row = self._shared, self._rows[key.row]
        models = self._models(key)
        run = Run(
            seed=key.seed, device=shared.device, precision=shared.precision, progress=False, compile=self._compile
        )
        started = time.perf_counter()
        tried = self._unlearn(row, key, models, run)
        unlearned = time.perf_counter()
        report, measured = self._measure(row, key, tried, models, run)
        surroundings = {
            "seconds": {"unlearn": unlearned - started, "audit": time.perf_counter() - unlearned},
            "compiled": run.compile,
            "host": platform.node(),
            **circumstances(run.torch_device, run.precision),
        }
        cell = Cell(
            setup=cell_setup(shared.experiment, row, key),
            data=shared.data_digest,
            precision=str(run.precision),
            versions={"pour": __version__, "torch": torch.__version__, "python": platform.python_version()},
            family=row.family,
            needs=() if row.method is None else get_method(row.method).needs,
            note=row.note,
            untuned=row.untuned,
            tuned_on=row.tuned_on,
            tuned_with=row.tuned_with,
            forgotten_names=tuple(shared.dataset.classes[label] for label in key.forget),
            rate_factor=tried.rate_factor,
            steps=0 if row.method is None or tried.model is None else history(tried.model)[-1].steps or 0,
            weight_change=tried.weight_change,
            **measured,
        )
        if report is not None and tried.model is not None and row.name in shared.experiment.pictures:
            self._draw(cell, report, {"original": models["original"].model, "unlearned": tried.model}, run)
        write_cell(
            shared.out, cell, surroundings, None if report is None else _without_history(report).to_json() + "\n"
        )

    def _measure(
        self, row: Row, key: CellKey, tried: Attempt, models: Mapping[SharedRole, SharedModel], run: Run
    ) -> tuple[AuditReport | None, dict[str, Any]]:
        """Return the audit of a row's model and the fields of the cell that depend on the model."""
        digests = {role: model.digest for role, model in models.items()}
        failure = {"models": digests, "failed": tried.failed, "warnings": tried.warnings}
        if tried.model is None:
            return None, failure
        try:
            report = self._audit(row, key, tried.model, models)
        except UsageError as error:
            if row.method is None:
                raise
            return None, {**failure, "failed": str(error)}
        experiment, pair = self._shared.experiment, {"original": models["original"].model, "unlearned": tried.model}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            readings = self._shared.task.readings(experiment.architecture, self._shared.dataset, key.forget, pair, run)
        lines = dict(zip(report.values(), report.lines, strict=True))
        extra = {name: Reading(**reading) for name, reading in readings.items()}  # type: ignore[arg-type]
        return report, {
            "models": {**digests, "unlearned": report.models["unlearned"].digest},
            "warnings": (*tried.warnings, *(str(entry.message) for entry in caught)),
            "values": {**extra, **{name: line.unlearned for name, line in lines.items()}},
            "verdicts": {name: line.verdict for name, line in lines.items()},
            "discrepancies": report.discrepancies,
            "collapse": dict(report.collapse.get("unlearned", {})),
            "answers": tuple(report.answers.get("unlearned", ())),
        }

    def _draw(self, cell: Cell, report: AuditReport, models: Mapping[str, nn.Module], run: Run) -> None:
        # Only these rows need matplotlib.
        from pour.report.pictures import save_picture

        task = self._shared.task
        samples = task.split(self._shared.dataset, "test")
        subject = Subject(models=models, reports={"unlearned": report}, samples=samples, run=run)
        pictured = replace(report, pictures=compute_pictures(task.name, subject))
        name = f"{'-'.join(cell.forgotten_names).lower()}-{cell.key.row}-seed-{cell.key.seed}.png"
        save_picture(pictured, self._shared.out / "overlays" / name)

    def _models(self, key: CellKey) -> dict[SharedRole, SharedModel]:
        keys = {role: ModelKey.of(key.seed, role, key.forget) for role in self._shared.experiment.roles}
        # A model that was trained again during the life of this worker must not be taken from its memory.
        versions = {role: self._shared.version(model_key) for role, model_key in keys.items()}
        self._loaded = {
            versions[role]: self._loaded.get(versions[role]) or self._shared.load(keys[role]) for role in keys
        }
        return {role: self._loaded[versions[role]] for role in keys}

    def _unlearn(self, row: Row, key: CellKey, models: Mapping[SharedRole, SharedModel], run: Run) -> Attempt:
        if row.method is None:
            return Attempt(model=models[row.name].model)  # type: ignore[index]
        experiment, needs = self._shared.experiment, get_method(row.method).needs
        data = self._shared.task.request_fields(
            experiment.architecture,
            self._shared.dataset,
            key.forget,
            validation=run.seed if "validation" in needs else None,
        )
        request = ForgetRequest(classes=list(key.forget), recipe=experiment.recipe, **data)
        original = models["original"].model
        try:
            return attempt(row.method, row.options, original, request, run, slow_down=row.setting == "tuned")
        except PourError as error:
            return Attempt(model=None, failed=str(error))

    def _audit(self, row: Row, key: CellKey, model: nn.Module, models: Mapping[SharedRole, SharedModel]) -> AuditReport:
        # The second retrained model is no reference for itself.
        roles: tuple[SharedRole, ...] = ("retrained",) if row.name == "ceiling" else ("retrained", "ceiling")
        return audit(
            original=models["original"].model,
            unlearned=model,
            retrained=[models[role].model for role in roles if role in models],
            task=self._shared.task,
            data=self._shared.dataset,
            classes=list(key.forget),
            cache=self._shared.out / CACHE,
            trusted=True,
            seed=key.seed,
            device=self._shared.device,
            progress=False,
        )


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """An unlearned model, or the reason for its absence."""

    model: nn.Module | None
    failed: str | None = None
    """Sentence of the divergence guard or of the method."""
    warnings: tuple[str, ...] = ()
    """Warnings of the method."""
    rate_factor: float = 1.0
    """Factor of the learning rates, if the method diverged at its own."""
    weight_change: float | None = None
    """|theta' - theta| / |theta| over all weights."""


def attempt(
    method: str, options: Mapping[str, Any], model: nn.Module, request: ForgetRequest, run: Run, *, slow_down: bool
) -> Attempt:
    """Unlearn `model`. Return the new model, or the sentence of the divergence guard.

    Args:
        method: Name of the method.
        options: Its options.
        model: Original model.
        request: Classes to forget and data.
        run: Seed, device and precision.
        slow_down: If the method diverges, repeat it with a third of its learning rates, and then with a ninth. A user
            sees the divergence without any test image.
    """
    failed, factor = "", 1.0
    for factor, slow in islice(slower(method, options), None if slow_down else 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                result = carry_out(model, request, make_method(method, **slow), run)
            except DivergenceError as error:
                failed = str(error)
                continue
        messages = [str(entry.message) for entry in caught]
        change = relative_change(model, result)
        is_finite = math.isfinite(change)
        return Attempt(
            model=result if is_finite else None,
            failed=None if is_finite else "The weights are not finite.",
            warnings=tuple(message for message in messages if message.startswith(method)),
            rate_factor=factor,
            weight_change=change if is_finite else None,
        )
    return Attempt(model=None, failed=failed, rate_factor=factor)


def make_iterative(method: str, options: Mapping[str, Any]) -> IterativeMethod:
    """Return a method with its options. Raise UsageError if it takes no optimisation steps."""
    iterative = make_method(method, **options)
    if not isinstance(iterative, IterativeMethod):
        raise UsageError(f"{method} takes no optimisation steps; give an iterative method.")
    return iterative


def slower(method: str, options: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the options of a method, then the options with smaller learning rates, each with the factor of the rates.

    A method without learning rates, or with learning rates from the data, has only its options.

    Examples:
        >>> [(round(factor, 2), chosen["lr"]) for factor, chosen in slower("delete", {"lr": 0.09})]
        [(1.0, 0.09), (0.33, 0.03), (0.11, 0.01)]
    """
    yield 1.0, dict(options)
    kind = get_method(method)
    resolved = make_method(method, **options).options()
    rates = {name: resolved[name] for name in kind.rate_options} if issubclass(kind, IterativeMethod) else {}
    if rates and None not in rates.values():
        for factor in _FACTORS:
            yield factor, {**options, **{name: float(f"{rate * factor:.6g}") for name, rate in rates.items()}}


def _without_history(report: AuditReport) -> AuditReport:
    """Return the report without the losses of its models, which would be most of a store."""
    models = {role: replace(model, history=()) for role, model in report.models.items()}
    return replace(report, models=models)
