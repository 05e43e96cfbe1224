"""The two settings of every iterative method, and the options of those that have nothing to tune."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pour._records import Option, read, record
from pour.bench.selection import Rule, TuningResult
from pour.errors import UsageError
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method
from pour.unlearning.unlearn import make_method

__all__ = [
    "CLOSED_FORM",
    "CLOSED_FORM_BY_DATASET",
    "NOT_TUNED",
    "Shipped",
    "ShippedOptions",
    "Tuned",
    "check_tuning",
    "chosen_options",
    "closed_form_options",
    "common_options",
    "starting_options",
    "tuned_options",
    "tuned_row_options",
]

NOT_TUNED = "not tuned"
"""First words of the note of a tuned row whose method was not tuned."""
TUNED = Path(__file__).with_name("tuned.json")
"""File of the tuned options that ship with pour. ``scripts/ship_tuning.py`` writes it."""

# Released configurations of DELETE's code base, the likely source of the paper's baselines: one setting for all.
_COMMON: dict[str, Any] = {
    "epochs": 20,
    "batch_size": 128,
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 0.0,
    "schedule": "constant",
    "augment": True,
    "batch_norm": "train",
}
_COMMON_RATE = {"cifar100": 5e-5}
_USUAL_RATE = 1e-4
# Where the method has something that the common code does not.
_COMMON_EXTRAS: dict[str, dict[str, Any]] = {"gradient-ascent": {"stop_accuracy": None}}
# DUCK shows 41 retained batches for each forget batch, so that four of its epochs are what 20 are to the others.
_COMMON_BY_DATASET: dict[tuple[str, str], dict[str, Any]] = {("duck", "cifar10"): {"epochs": 4}}
# An epoch of DUCK is 41 steps to each forget batch and has no end of its own at a low rate: no trial may take more
# than the common row does.
_STARTING_BY_DATASET: dict[tuple[str, str], dict[str, Any]] = {
    ("duck", "cifar10"): {"epochs": 4},
    ("duck", "cifar100"): {"epochs": 20, "retain_batches": 6},
    # About as many images as 20 epochs of the forgotten class, which is what the other methods see.
    ("finetune", "pathmnist"): {"epochs": 2},
    ("fcs", "pathmnist"): {"epochs": 2},
    ("pour-d", "pathmnist"): {"steps": 200},
}
# SGD at the rates that suit small convolutional networks destroys a pretrained transformer, whatever the method.
_PRETRAINED = ("pathmnist",)
_PRETRAINED_RATE = 3e-6

CLOSED_FORM: dict[str, tuple[str, ...]] = {
    "esc": ("esc-1", "esc"),
    "pour-p": ("pour-p-scores", "pour-p-decisions", "pour-p"),
}
"""Methods without optimisation that have more than one row; the one that the paper's value belongs to comes last."""
CLOSED_FORM_BY_DATASET: dict[tuple[str, str], tuple[str, ...]] = {
    ("pour-p", "pathmnist"): ("pour-p-scores", "pour-p-decisions", "pour-p-mask", "pour-p")
}
"""The same for single datasets."""
# POUR-P keeps the class's own score and removes its row, as printed in the paper; masking would forget on its own.
_CLOSED_FORM_OPTIONS: dict[str, dict[str, Any]] = {
    "pour-p": {"forgotten_logit": "keep", "direction": "weights"},
    "pour-p-mask": {"forgotten_logit": "mask", "direction": "weights"},
    "pour-p-scores": {"forgotten_logit": "keep", "direction": "scores"},
    "pour-p-decisions": {"forgotten_logit": "keep", "direction": "decisions"},
    "esc-1": {"rank": 1},
}
# Of its authors' scripts, which have a setting for each dataset.
_CLOSED_FORM_BY_DATASET: dict[tuple[str, str], dict[str, Any]] = {
    ("projun", "cifar100"): {"alpha_retain": 1000.0, "alpha_forget": 30.0, "images": 990}
}


def common_options(method: type[IterativeMethod], dataset: str) -> dict[str, Any]:
    """The rivals' common code base: one learning rate, 20 epochs, batches of 128, BatchNorm in train mode.

    Example:
        >>> from pour.unlearning import get_method
        >>> common_options(get_method("delete"), "cifar100")["lr"]
        5e-05
    """
    rate = _COMMON_RATE.get(dataset, _USUAL_RATE)
    extras = {**_COMMON_EXTRAS.get(method.name, {}), **_COMMON_BY_DATASET.get((method.name, dataset), {})}
    return {**dict.fromkeys(method.rate_options, rate), **_COMMON, **extras}


def closed_form_options(row: str, dataset: str) -> dict[str, Any]:
    """The options of a row that has nothing to tune."""
    return {**_CLOSED_FORM_OPTIONS.get(row, {}), **_CLOSED_FORM_BY_DATASET.get((row, dataset), {})}


@record
@dataclass(frozen=True, kw_only=True)
class ShippedOptions:
    """Options that tuning chose for a method, and the origin of the choice."""

    options: dict[str, Option]
    rule: Rule
    seed: int
    note: str = ""
    """Reason for the choice."""
    dataset: str | None = None
    architecture: str | None = None
    forgotten: tuple[int, ...] = ()
    """Classes that the trials forgot."""


Shipped = dict[str, dict[str, ShippedOptions]]
"""Content of ``tuned.json``, by dataset and method."""


class Tuned(NamedTuple):
    """Options of a tuned row and their origin."""

    options: dict[str, Any]
    note: str
    classes: tuple[int, ...] = ()
    """Classes that the trials forgot; empty if nothing was tuned."""
    seed: int | None = None
    """Seed of the trials."""


def tuned_options(method: str, dataset: str, folder: Path | None = None, *, architecture: str | None = None) -> Tuned:
    """Return the options that tuning chose for a method, or its defaults with BatchNorm frozen if it was not tuned.

    Args:
        method: An iterative method.
        dataset: Name of the dataset of the tuning.
        folder: Folder of :func:`pour.bench.tune_experiment`; by default the options that ship with pour.
        architecture: Network of the experiment. Shipped options for another network are ignored.

    Raises:
        UsageError: The folder contains a tuning on another network or dataset.
    """
    frozen = tuned_row_options(method, dataset, {})
    found = _frozen().get(dataset, {}).get(method) if folder is None else chosen_options(folder, method)
    for subject, wanted in ((found and found.dataset, dataset), (found and found.architecture, architecture)):
        if found is None or None in (wanted, subject) or subject == wanted:
            continue
        if folder is not None:
            raise UsageError(f"{folder} was tuned for {method} on {subject}, not on {wanted}; run pour tune for it.")
        found = None
    if found is None:
        own = make_method(method).options()
        other = ", ".join(f"{name}={value}" for name, value in frozen.items() if own.get(name) != value)
        return Tuned(frozen, f"{NOT_TUNED}: the method's defaults" + (f", but {other}" if other else ""))
    return Tuned(
        tuned_row_options(method, dataset, found.options),
        f"tuned by the rule {found.rule!r} with seed {found.seed}",
        found.forgotten,
        found.seed,
    )


def check_tuning(folder: Path) -> None:
    """Raise UsageError if a folder contains no tuning by the rule ``benchmark``."""
    if any(folder.glob("*-benchmark/result.json")):
        return
    others = sorted(path.parent.name for path in folder.glob("*-user/result.json"))
    hint = f" ({others[0]} was chosen by the rule user)" if others else ""
    raise UsageError(
        f"{folder} has no finished tuning by the rule benchmark{hint}; run pour tune --out {folder} first."
    )


def starting_options(method: str, dataset: str) -> dict[str, Any]:
    """Return the options that tuning starts from instead of a method's own defaults.

    Pretrained networks get AdamW, a small rate and fewer steps. A method without an end gets one.

    Example:
        >>> starting_options("delete", "pathmnist"), starting_options("delete", "cifar10")
        ({'lr': 3e-06, 'optimizer': 'adamw', 'weight_decay': 0.0}, {})
    """
    kind = get_method(method)
    length = _STARTING_BY_DATASET.get((method, dataset), {})
    if dataset not in _PRETRAINED or not issubclass(kind, IterativeMethod):
        return dict(length)
    return {**dict.fromkeys(kind.rate_options, _PRETRAINED_RATE), "optimizer": "adamw", "weight_decay": 0.0, **length}


def tuned_row_options(method: str, dataset: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a tuned row: those that tuning starts from, replaced by the chosen ones."""
    return {"batch_norm": "frozen", **starting_options(method, dataset), **chosen}


def _frozen() -> Shipped:
    return read(Shipped, TUNED) if TUNED.is_file() else {}


def chosen_options(folder: Path, method: str) -> ShippedOptions | None:
    """Return the choice of a finished tuning, or None if the folder has none for this method."""
    path = folder / f"{method}-benchmark" / "result.json"
    if not path.is_file():
        return None
    result = read(TuningResult, path)
    if result.best is None:
        return None
    return ShippedOptions(
        options=result.options,
        rule=result.rule,
        seed=result.seed,
        note=result.note,
        dataset=result.dataset,
        architecture=result.architecture,
        forgotten=result.forgotten,
    )
