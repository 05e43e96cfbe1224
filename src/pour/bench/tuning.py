"""The same small tuning budget for every iterative method, and two honest rules to choose by."""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from pour._io import write_text
from pour._progress import ProgressBar
from pour._records import encode, read, record
from pour.bench.selection import Rule, Trial, TuningResult, beyond, choose, relative_change
from pour.errors import DivergenceError, UsageError
from pour.metrics.unlearning import aus
from pour.models.card import architecture
from pour.models.copy_and_swap import copy_model
from pour.models.history import forgotten_before
from pour.models.state import digest
from pour.models.tap import extract_features
from pour.models.unwrap import unwrap
from pour.training.run import Run
from pour.training.tasks.classify import evaluation_loader
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import torch
    from torch import nn

    from pour.data.samples import IndexedSamples
    from pour.data.splits import Splits
    from pour.training.recipes import Recipe
    from pour.training.run import Precision

__all__ = ["Rule", "Trial", "TuningResult", "grid", "starting_rates", "tune"]

RUNGS = (-2, -1, 0, 1)
"""The rates of the first eight settings, 0.1, 0.3, 1 and 3 times the method's own: rungs of a ladder."""
MOST_TRIALS = 16
"""The first eight settings, and what may be tried beyond them."""
HELD_OUT = 0.1
"""The share of the training images that trials do not train on."""


def grid(method: IterativeMethod, rates: dict[str, float], rungs: tuple[int, ...] = RUNGS) -> list[dict[str, Any]]:
    """The eight settings: four learning rates around the method's own times two lengths, most often half and all of it.

    A method with several learning rates has them scaled together.

    Args:
        method: the method with its defaults.
        rates: its learning rates by option.
        rungs: which learning rates, in half decades above or below those.

    Example:
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
    """1 at rung 0, 3 at 1, 10 at 2, 0.3 at -1."""
    return float(10.0 ** (rung // 2)) * (3 if rung % 2 else 1)


def tune(
    model: nn.Module,
    splits: Splits,
    method: str,
    *,
    rule: Rule = "user",
    seed: int = 0,
    device: str | torch.device | None = None,
    precision: Precision | None = None,
    progress: bool = True,
    compile: bool = False,
    build: Callable[[], nn.Module] | None = None,
    recipe: Recipe | None = None,
    out: str | Path,
    **options: Any,
) -> TuningResult:
    """Try eight settings of a method and choose one; the test split is never looked at.

    With ``rule="user"`` only data that the method may see decide. A method without retained images takes, among the
    settings that leave at most 0.2 % accuracy on un-augmented forget images, the smallest change of the weights. A
    method with both kinds maximises AUS on a tenth of the retained images, held out, and on the forget images. A
    method without forget images takes, among the settings that lose at most one point on held-out retained images, the
    largest change of the weights. ``rule="benchmark"`` maximises AUS on a tenth of all training images, held out.
    A best rate at the edge of those tried says that better ones may lie beyond. Where AUS is seen and that of the best
    is below 0.99, two more rates are tried beyond the edge, and once more if need be, unless the rate before the edge
    did as well; so too below the lowest rate where every setting diverges. That is sixteen settings at most, by the
    same rule for all methods.

    Every trial is written to ``out`` as soon as it is done, in one JSON file; the same call reads those that are there
    and goes on with the rest.

    Args:
        model: the original.
        splits: its data, and the classes to forget.
        method: the name of an iterative method.
        rule: what decides.
        seed: of the hold-out and of every trial.
        device: where to compute.
        precision: fp32 or bf16.
        progress: show a progress bar.
        compile: compile the encoder that the trials train, once for all.
        build: makes a fresh model, for methods that need one.
        recipe: how the original was trained.
        out: the folder for the trials.
        options: options that all trials share, in place of the method's defaults.
    """
    chosen = _checked(method, rule, options)
    run = Run(seed=seed, device=device, precision=precision, progress=False, compile=compile)
    original = unwrap(model)
    data = _Data.of(splits, chosen, rule, seed, forgotten_before(original))
    request = replace(data.request, build=build, recipe=recipe)
    folder = Path(out) / f"{method}-{rule}"
    identity = {
        "model": digest(original.state_dict()),
        "data": _fingerprint(splits),
        "rule": rule,
        "seed": seed,
        "precision": run.precision,
    }
    before = _accuracy(original, data.retain, run)
    rates = starting_rates(chosen, original, request, run)

    def stored_or_tried(setting: dict[str, Any]) -> Trial:
        everything = {**options, **setting}
        # With the defaults, so that one that changes later is noticed.
        resolved = make_method(method, **everything).stored_options()
        key = json.dumps({**identity, "options": resolved}, sort_keys=True, default=str)
        path = folder / f"{'-'.join(f'{name}-{value:g}' for name, value in setting.items())}.json"
        trial = _stored(path, key)
        if trial is None:
            trial = _try(original, request, method, everything, data, before, run)
            write_text(path, encode(StoredTrial(key, trial), indent=2) + "\n")
        return trial

    trials: list[Trial] = []
    tried: list[int] = []
    rungs: tuple[int, ...] = RUNGS
    while rungs:
        settings = grid(chosen, rates, rungs)
        with ProgressBar(len(settings), f"tuning {method}", enabled=progress) as bar:
            for count, setting in enumerate(settings, start=1):
                trials.append(stored_or_tried(setting))
                bar.update(count)
        tried += rungs * (len(settings) // len(rungs))
        choice = choose(trials, original_accuracy=before)
        rungs = beyond(trials, tried, choice.best) if len(trials) < MOST_TRIALS else ()
    card = architecture(original)
    result = TuningResult(
        method=method,
        rule=rule,
        seed=seed,
        dataset=splits.name,
        architecture=None if card is None else card.name,
        forgotten=tuple(splits.forgotten),
        trials=tuple(trials),
        best=choice.best,
        note=choice.note,
    )
    write_text(folder / "result.json", encode(result, indent=2) + "\n")
    return result


def starting_rates(method: IterativeMethod, model: nn.Module, request: ForgetRequest, run: Run) -> dict[str, float]:
    """The learning rates of a method by option; one that the data decide is read from a single step.

    Args:
        method: with its options.
        model: the original, which stays as it is.
        request: what the method may see.
        run: seed, device and precision.
    """
    rates = {option: getattr(method, option) for option in method.rate_options}
    if None in rates.values():
        probe = replace(method, steps=1, epochs=None)
        look = Run(seed=run.seed, device=run.device, precision=run.precision, progress=False)
        with warnings.catch_warnings(), look.seeded():
            warnings.simplefilter("ignore", UserWarning)
            probe(copy_model(model), request.grant(method.needs, name=method.name), look)
        derived = next((entry["lr"] for entry in look.history if "lr" in entry), look.choices.get("lr"))
        if derived is None:
            raise UsageError(f"{method.name} has no learning rate to tune around; give one with lr=.")
        rates = {option: derived if rate is None else rate for option, rate in rates.items()}
    return rates


@dataclass(frozen=True)
class _Data:
    """What the trials train on, and what they are judged by."""

    request: ForgetRequest
    forget: IndexedSamples | None
    retain: IndexedSamples | None

    @classmethod
    def of(cls, splits: Splits, method: IterativeMethod, rule: Rule, seed: int, gone: Collection[int]) -> _Data:
        held = splits.holdout(HELD_OUT, seed)
        judged = held.validation
        if judged is None:
            raise UsageError("Holding out training images left none; give splits with more of them.")
        if "validation" in method.needs:
            # What the method itself compares with must not be what it is judged by.
            held = (
                replace(held, validation=splits.validation) if splits.validation else held.holdout(HELD_OUT, seed + 1)
            )
        # Trials read what the method needs, but not what it also accepts: tuning judges it by its declared data.
        request = ForgetRequest.of(held)
        for need in method.accepts:
            setattr(request, need, None)
        # A setting that brings back what was forgotten before must gain nothing by it.
        retain = judged.retain.without(gone)
        if rule == "benchmark":
            return cls(request, judged.forget, retain)
        request.forget = splits.forget_train
        if "retain" not in method.needs:
            return cls(request, splits.forget_train, None)
        return cls(request, splits.forget_train if "forget" in method.needs else None, retain)


def _checked(name: str, rule: str, options: dict[str, Any]) -> IterativeMethod:
    if rule not in get_args(Rule):
        raise UsageError(f"The rule must be user or benchmark, but is {rule!r}.")
    if not issubclass(get_method(name), IterativeMethod):
        raise UsageError(f"{name} takes no optimisation steps that could be tuned; tune an iterative method.")
    method = make_method(name, **options)
    if not isinstance(method, IterativeMethod):
        raise UsageError(f"{name} takes no optimisation steps that could be tuned; tune an iterative method.")
    return method


def _try(
    model: nn.Module,
    request: ForgetRequest,
    method: str,
    options: dict[str, Any],
    data: _Data,
    before: float | None,
    run: Run,
) -> Trial:
    started = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = carry_out(model, request, make_method(method, **options), run)
    except DivergenceError as error:
        return Trial(options=options, failed=str(error), seconds=time.perf_counter() - started)
    change = relative_change(model, result)
    if not math.isfinite(change):
        return Trial(options=options, failed="The weights are not finite.", seconds=time.perf_counter() - started)
    forget, retain = _accuracy(result, data.forget, run), _accuracy(result, data.retain, run)
    seen = forget is not None and retain is not None and before is not None
    return Trial(
        options=options,
        weight_change=change,
        forget_accuracy=forget,
        retain_accuracy=retain,
        aus=aus(before, retain, forget) if seen else None,  # type: ignore[arg-type]
        seconds=time.perf_counter() - started,
    )


def _accuracy(model: nn.Module, split: IndexedSamples | None, run: Run) -> float | None:
    if split is None:
        return None
    seen = extract_features(model, evaluation_loader(split, run), device=run.torch_device)
    return (seen.scores.argmax(dim=1) == seen.labels).double().mean().item()


@record
@dataclass(frozen=True)
class StoredTrial:
    """File of one trial."""

    key: str
    """Everything that decides the result of the trial, as JSON."""
    trial: Trial


def _stored(path: Path, key: str) -> Trial | None:
    """Return the trial in ``path``, or None if it is missing, damaged or of another key."""
    try:
        stored = read(StoredTrial, path)
    except UsageError:
        return None
    return stored.trial if stored.key == key else None


def _fingerprint(splits: Splits) -> str:
    train = splits.train.whole
    total = hashlib.blake2b(train.images.tobytes(), digest_size=16)
    total.update(train.labels.tobytes())
    total.update(json.dumps(splits.forgotten).encode())
    return total.hexdigest()
