"""Tune methods: every iterative method tries the same number of settings, and one rule chooses among them.

Trials never read the test split. The tuning of an experiment forgets a class and uses a seed that its tables do not
report.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, get_args

import torch

from pour._io import write_text
from pour._progress import ProgressBar
from pour._records import encode, read, record
from pour.bench.cell import attempt, make_iterative
from pour.bench.executors import check_workers, crew
from pour.bench.grid import claim, requests_of
from pour.bench.rows import starting_options
from pour.bench.selection import Rule, Trial, TuningResult, beyond, choose
from pour.bench.shared_models import ModelKey, SharedModels
from pour.bench.store import refuse_other
from pour.errors import UsageError
from pour.metrics.unlearning import aus
from pour.models.card import architecture
from pour.models.copy_and_swap import copy_model
from pour.models.history import forgotten_before
from pour.models.state import digest
from pour.models.unwrap import unwrap
from pour.training.loop import BatchNormMode
from pour.training.run import Run, resolve_device
from pour.training.tasks.classify import Classify
from pour.unlearning.registry import get_method
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from torch import nn

    from pour.auditing.features import Side
    from pour.bench.experiment import Experiment
    from pour.training.recipes import Recipe
    from pour.training.run import Precision
    from pour.training.tasks.task import Dataset, Task
    from pour.unlearning.iterative import IterativeMethod

__all__ = ["TUNING_SEED", "MethodTuning", "grid", "starting_rates", "tune_experiment"]

RUNGS = (-2, -1, 0, 1)
"""Learning rates of the first eight settings, as rungs of a ladder: 0.1, 0.3, 1 and 3 times the method's own."""
MOST_TRIALS = 16
"""Largest number of trials of a method."""
TUNING_SEED = 100
"""Seed that no table reports."""


@dataclass(kw_only=True)
class MethodTuning:
    """Tuning of one method: it tries eight settings or more and chooses one.

    With the rule `user`, only data that the method may read decide:

    - A method without retained samples gets the setting with the smallest change of the weights, among the settings
      with at most 0.2 % accuracy on forget samples without augmentation.
    - A method with forget and retained samples gets the setting with the highest AUS, computed on the forget samples
      and on a tenth of the retained samples, which is held out.
    - A method without forget samples gets the setting with the largest change of the weights, among the settings that
      lose at most one point of accuracy on held-out retained samples.

    With the rule `benchmark`, the highest AUS on a tenth of all training samples decides, which is held out.

    If the best learning rate is the lowest or the highest of the tried ones and its AUS is below 0.99, two more rates
    beyond it are tried, at most twice. They are not tried if the next rate inward is as good. If every setting
    diverges, two lower rates are tried.
    """

    model: nn.Module
    """Original model."""
    dataset: Dataset
    """Data that the original was trained on."""
    classes: tuple[int, ...]
    """Indices of the classes to forget."""
    method: str
    """Name of an iterative method."""
    out: Path
    """Folder of the trials of all methods."""
    run: Run
    """Seed of the hold-out and of every trial, device, precision and progress bar."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of every trial, instead of the method's defaults."""
    rule: Rule = "user"
    """Data that decide."""
    task: Task[Any, Any] = field(default_factory=Classify)
    """Kind of samples and labels."""
    arch: str = ""
    """Name of the network, for methods that build a fresh one."""
    recipe: Recipe | None = None
    """Recipe that the original was trained with, for methods that train a model."""

    def __post_init__(self) -> None:
        if self.rule not in get_args(Rule):
            raise UsageError(f"The rule must be user or benchmark, but is {self.rule!r}.")
        # This raises for a method without optimisation steps.
        make_iterative(self.method, self.options)
        self.model = unwrap(self.model)

    def result(self) -> TuningResult:
        """Run the trials, choose a setting and return the result.

        Each trial is written to a file as soon as it is finished. The same call reads these files and resumes.
        """
        method = make_iterative(self.method, self.options)
        rates = starting_rates(method, self.model, self.request, self.run)
        trials: list[Trial] = []
        rung_of_trial: list[int] = []
        rungs: tuple[int, ...] = RUNGS
        while rungs:
            settings = grid(method, rates, rungs)
            with ProgressBar(len(settings), f"tuning {self.method}", enabled=self.run.progress) as bar:
                for count, setting in enumerate(settings, start=1):
                    trials.append(self.trial(setting))
                    bar.update(count)
            rung_of_trial += rungs * (len(settings) // len(rungs))
            choice = choose(trials, original_accuracy=self.original_score)
            rungs = beyond(trials, rung_of_trial, choice.best) if len(trials) < MOST_TRIALS else ()
        card = architecture(self.model)
        result = TuningResult(
            method=self.method,
            rule=self.rule,
            seed=self.run.seed,
            dataset=self.dataset.name,
            architecture=card.name if card else None,
            forgotten=self.classes,
            trials=tuple(trials),
            best=choice.best,
            note=choice.note,
        )
        write_text(result_file(self.out, self.method, self.rule), encode(result, indent=2) + "\n")
        return result

    def trial(self, setting: dict[str, Any]) -> Trial:
        """Return the stored trial of a setting, or run and store it."""
        options = {**self.options, **setting}
        # The key contains the defaults too: a default that changes later makes the trial again.
        resolved = make_method(self.method, **options).stored_options()
        key = json.dumps({**self.identity, "options": resolved}, sort_keys=True, default=str)
        name = "-".join(f"{option}-{value:g}" for option, value in setting.items())
        path = result_file(self.out, self.method, self.rule).with_name(f"{name}.json")
        with contextlib.suppress(UsageError):
            # A file that is missing or damaged raises UsageError.
            stored = read(StoredTrial, path)
            if stored.key == key:
                return stored.trial
        trial = self._run(options)
        write_text(path, encode(StoredTrial(key, trial), indent=2) + "\n")
        return trial

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything but the options that decides the result of a trial."""
        return {
            "model": digest(self.model.state_dict()),
            "data": self.task.digest(self.dataset),
            "classes": self.classes,
            "rule": self.rule,
            "seed": self.run.seed,
            "precision": self.run.precision,
        }

    @cached_property
    def original_score(self) -> float | None:
        """Score of the original on retained classes."""
        return self._score(self.model, "retain")

    @cached_property
    def _divided(self) -> tuple[Any, Any]:
        """Training samples of the trials, and samples that are held out."""
        samples = self.task.split(self.dataset, "train")
        return self.task.hold_out(self.dataset, samples, self.classes, self.run.seed)

    @cached_property
    def request(self) -> ForgetRequest:
        """Request of all trials. It offers the data that the method needs, but not the data that it only accepts."""
        # Samples that the method itself reads must not score its trials.
        validation = self.run.seed + 1 if "validation" in get_method(self.method).needs else None
        train, _ = self._divided
        data = self.task.request_fields(self.arch, self.dataset, self.classes, train=train, validation=validation)
        if self.rule == "user":
            data["forget"] = self.task.request_fields(self.arch, self.dataset, self.classes)["forget"]
        data |= dict.fromkeys(get_method(self.method).accepts)
        return ForgetRequest(classes=list(self.classes), recipe=self.recipe, **data)

    def _run(self, options: dict[str, Any]) -> Trial:
        started = time.perf_counter()
        run = replace(self.run, progress=False)
        tried = attempt(self.method, options, self.model, self.request, run, slow_down=False)
        if tried.model is None:
            return Trial(options=options, failed=tried.failed, seconds=time.perf_counter() - started)
        model = tried.model
        forget, retain, before = self._score(model, "forget"), self._score(model, "retain"), self.original_score
        return Trial(
            options=options,
            weight_change=tried.weight_change,
            forget_accuracy=forget,
            retain_accuracy=retain,
            aus=None if forget is None or retain is None or before is None else aus(before, retain, forget),
            seconds=time.perf_counter() - started,
        )

    def _score(self, model: nn.Module, side: Side) -> float | None:
        """Return the score of the task that counts only labels of one side, or None if the rule does not allow it."""
        if self.rule == "user" and side not in get_method(self.method).needs:
            return None
        names = self.dataset.classes
        forgotten = set(self.classes)
        retained = set(range(len(names))) - forgotten
        if self.rule == "user" and side == "forget":
            train = self.task.split(self.dataset, "train")
            rows = self.task.belongs(torch.as_tensor(train.labels), self.classes).nonzero().squeeze(1)
            # A method that reads forget samples alone must not be scored by their other labels.
            samples = train.take(rows.numpy()).without(retained)
        else:
            # A setting that relearns a class forgotten earlier must not gain by it.
            samples = self._divided[1].without(forgotten_before(self.model))
        counts = self.task.answers(model, samples, self.run).double().unsqueeze(0)
        counted = forgotten if side == "forget" else retained
        scores = self.task.scores(counts, self.classes, names).values()
        score = next(score for score in scores if set(score.classes) == counted)
        value = score.values.item()
        return score.undefined if math.isnan(value) else value


def grid(method: IterativeMethod, rates: dict[str, float], rungs: tuple[int, ...] = RUNGS) -> list[dict[str, Any]]:
    """Return the settings to try: each learning rate with two lengths, usually half and all of the method's own.

    A method with several learning rates has all of them scaled by the same factor.

    Args:
        method: Method with its defaults.
        rates: Learning rates of the method by option.
        rungs: Rungs of the ladder of learning rates. Rung 0 is `rates`, and two rungs are a factor of 10.

    Examples:
        >>> settings = grid(make_method("finetune"), {"lr": 0.01})
        >>> len(settings), settings[0]
        (8, {'lr': 0.001, 'epochs': 5})
    """
    return [
        {**{option: float(f"{rate * _factor(rung):.6g}") for option, rate in rates.items()}, **length}
        for length in method.lengths()
        for rung in rungs
    ]


def _factor(rung: int) -> float:
    """Return 1 for rung 0, 3 for rung 1, 10 for rung 2, 0.3 for rung -1."""
    return float(10.0 ** (rung // 2)) * (3 if rung % 2 else 1)


def starting_rates(method: IterativeMethod, model: nn.Module, request: ForgetRequest, run: Run) -> dict[str, float]:
    """Return the learning rates of a method by option. A rate that the method derives is read from a single step.

    Args:
        method: Method with its options.
        model: Original, which does not change.
        request: Data that the method may read.
        run: Seed, device and precision.
    """
    rates = {option: getattr(method, option) for option in method.rate_options}
    if None in rates.values():
        single_step = replace(method, steps=1, epochs=None)
        probe = Run(seed=run.seed, device=run.device, precision=run.precision, progress=False)
        with warnings.catch_warnings(), probe.seeded():
            warnings.simplefilter("ignore", UserWarning)
            single_step(copy_model(model), request.grant(method.needs, name=method.name), probe)
        derived = next((entry["lr"] for entry in probe.history if "lr" in entry), probe.choices.get("lr"))
        if derived is None:
            raise UsageError(
                f"{method.name} has no learning rate to tune around; set one in its row of the experiment's file, "
                "such as lr = 0.001."
            )
        rates = {option: derived if rate is None else rate for option, rate in rates.items()}
    return rates


@record(kw_only=False)
class StoredTrial:
    """File of one trial."""

    key: str
    """Options, data and seed that decide the result of the trial, as JSON."""
    trial: Trial


def result_file(folder: Path, method: str, rule: Rule) -> Path:
    """Return the file of a method's result. Its trials are next to it."""
    return folder / f"{method}-{rule}" / "result.json"


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
    """Tune the iterative methods of an experiment. The same call reads finished trials and resumes.

    The original is trained with the seed of the tuning and stored next to the trials.

    Args:
        experiment: A built-in experiment by name, or your own.
        out: Folder for the original and the trials. The argument `tuning` of an experiment reads it.
        methods: Methods to tune; by default all.
        rule: Data that decide, see `MethodTuning`.
        forget: Classes to forget while tuning; by default `tuning_forget` of the experiment.
        seed: Seed of the original, of the hold-out and of every trial.
        batch_norm: BatchNorm mode of every trial. The tuned rows of tables freeze it, because methods without retained
            samples need that. Other methods may let it train.
        root: Data folder.
        device: Device of the computation.
        precision: fp32 or bf16; by default the precision of the stored original.
        jobs: Number of methods that are tuned at the same time.
        compile: Compile the encoders that methods train.
        progress: Show a progress bar.
    """
    check_workers(jobs)
    shared = SharedModels.open(experiment, out, root, str(resolve_device(device)), precision)
    folder = shared.out
    names = _methods(shared.experiment, methods)
    _check_batch_norm(folder, batch_norm)
    classes = _classes(shared, forget, seed)
    # Trials on another network belong in another folder.
    claim(shared)
    shared.train(ModelKey(seed, "original"))
    # Several processes would draw over each other's progress bars, so one bar counts their methods.
    run = Run(
        seed=seed, device=shared.device, precision=shared.precision, progress=progress and jobs == 1, compile=compile
    )
    tuner = partial(_Tuner, replace(shared), classes, rule, batch_norm, run)
    # Methods that train on retained samples take longest, and started first they do not end last.
    ordered = sorted(names, key=lambda method: "retain" not in get_method(method).needs)
    with (
        crew(tuner, device=shared.device, jobs=min(jobs, len(names))) as do,
        ProgressBar(len(names), f"tuning {shared.experiment.name}", enabled=progress and jobs > 1) as bar,
    ):
        for count, method in enumerate(do(ordered), start=1):
            bar.update(count, note=method)
    return [read(TuningResult, result_file(folder, method, rule)) for method in names]


@dataclass
class _Tuner:
    """Worker that tunes methods, one after another, on the same original."""

    shared: SharedModels
    classes: tuple[int, ...]
    rule: Rule
    batch_norm: BatchNormMode
    run: Run

    @cached_property
    def original(self) -> nn.Module:
        """Model that all methods start from."""
        return self.shared.load(ModelKey(self.run.seed, "original")).model

    def prepare(self) -> None:
        """Load the original, and with it the data, and start the device."""
        self.original  # noqa: B018 - cached from here on
        torch.zeros(1, device=self.shared.device)

    def do(self, method: str) -> None:
        """Tune a method. The trials and the choice are written to its folder."""
        experiment = self.shared.experiment
        row = next(row for row in experiment.rows if row.method == method and row.setting == "tuned")
        # Options that an earlier tuning has chosen must not decide where this one starts.
        start = row.options if row.tuned_with is None else starting_options(method, experiment.dataset)
        MethodTuning(
            model=self.original,
            dataset=self.shared.dataset,
            classes=self.classes,
            method=method,
            out=self.shared.out,
            run=self.run,
            options={**start, "batch_norm": self.batch_norm},
            rule=self.rule,
            task=self.shared.task,
            arch=experiment.architecture,
            recipe=experiment.recipe,
        ).result()


def _methods(grid: Experiment, methods: Iterable[str] | None) -> list[str]:
    """Return the methods to tune. Raise UsageError for a method that the experiment does not tune."""
    tunable = list(dict.fromkeys(row.method for row in grid.rows if row.setting == "tuned" and row.method))
    names = tunable if methods is None else list(dict.fromkeys(methods))
    unknown = [method for method in names if method not in tunable]
    if unknown:
        raise UsageError(f"{unknown[0]} has nothing to tune in {grid.name}; its methods are {', '.join(tunable)}.")
    if not names:
        raise UsageError(f"{grid.name} has no method to tune; add a row with the setting tuned.")
    return names


def _classes(shared: SharedModels, forget: Sequence[int | str] | None, seed: int) -> tuple[int, ...]:
    """Return the indices of the classes that tuning forgets.

    Raise UsageError if the experiment's tables report a class or the seed.
    """
    grid = shared.experiment
    named = grid.tuning_forget if forget is None else forget
    if not named:
        raise UsageError(
            f"The experiment {grid.name} has no class for tuning; give classes with forget=, or with tuning_forget in "
            "its file."
        )
    classes = shared.task.classes(shared.dataset, list(named))
    reported_classes = {label for request in requests_of(shared) for label in request}
    reported = [f"seed {seed}"] if seed in grid.seeds else []
    reported += [f"class {label}" for label in classes if label in reported_classes]
    if reported:
        raise UsageError(
            f"The tables of {grid.name} report {' and '.join(reported)}; tune on others, or the tuned rows would have "
            "seen their own test."
        )
    return classes


def _check_batch_norm(folder: Path, batch_norm: BatchNormMode) -> None:
    """Raise UsageError if the trials in a folder have another BatchNorm mode: a folder has one choice per method."""
    if batch_norm not in get_args(BatchNormMode):
        raise UsageError(f"batch_norm must be frozen or train, but is {batch_norm!r}.")
    for path in sorted(folder.glob("*-*/*.json")):
        try:
            options = read(StoredTrial, path).trial.options
        except UsageError:
            # The file is a result or a damaged trial, which tuning repeats.
            continue
        stored = {"name": path.parent.name, "batch_norm": options.get("batch_norm", batch_norm)}
        refuse_other(folder, stored, {"batch_norm": batch_norm})
