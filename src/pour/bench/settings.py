"""The two settings of every iterative method, and the options of those that have nothing to tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from pour._io import write_text
from pour.errors import UsageError
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method
from pour.unlearning.unlearn import make_method

__all__ = [
    "CLOSED_FORM",
    "CLOSED_FORM_BY_DATASET",
    "NOT_TUNED",
    "Tuned",
    "check_tuning",
    "closed_form_options",
    "common_options",
    "freeze_tuning",
    "starting_options",
    "tuned_options",
]

NOT_TUNED = "not tuned"
"""How the note of a row starts that was to be tuned and was not."""
TUNED = Path(__file__).with_name("tuned.json")
"""What tuning chose once and for all, by dataset and method; it ships with pour."""

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
# What a choice was made on.
_SUBJECT = ("dataset", "architecture", "forgotten")
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


class Tuned(NamedTuple):
    """Options of a tuned row, and where they come from."""

    options: dict[str, Any]
    note: str
    classes: tuple[int, ...] = ()
    """What the trials forgot; empty where nothing was tuned."""
    seed: int | None = None
    """Of the trials."""


def tuned_options(method: str, dataset: str, folder: Path | None = None, *, architecture: str | None = None) -> Tuned:
    """What tuning chose for a method, BatchNorm frozen, and where that comes from; the method's defaults without.

    Args:
        method: an iterative method.
        dataset: what it was tuned on.
        folder: where :func:`pour.bench.tune` wrote its trials; by default what ships with pour.
        architecture: the network that the options are for. What ships with pour for another one is not taken; a folder
            that was tuned on another one, or on other data, is refused.
    """
    frozen = _from_start(method, dataset, {})
    found = _frozen_choice(method, dataset) if folder is None else _choice(folder, method)
    for what, wanted in (("dataset", dataset), ("architecture", architecture)):
        if found is None or None in (wanted, found[what]) or found[what] == wanted:
            continue
        if folder is not None:
            raise UsageError(
                f"{folder} was tuned for {method} on {found[what]}, not on {wanted}; run pour tune for it."
            )
        found = None
    if found is None:
        own = make_method(method).options()
        other = ", ".join(f"{name}={value}" for name, value in frozen.items() if own.get(name) != value)
        return Tuned(frozen, f"{NOT_TUNED}: the method's defaults" + (f", but {other}" if other else ""))
    return Tuned(
        _from_start(method, dataset, found["options"]),
        f"tuned by the rule {found['rule']!r} with seed {found['seed']}",
        tuple(found["forgotten"] or ()),
        found["seed"],
    )


def check_tuning(folder: Path) -> None:
    """Raise for a folder that holds no tuning for a benchmark, which would quietly leave all methods untuned."""
    if any(folder.glob("*-benchmark/result.json")):
        return
    others = sorted(path.parent.name for path in folder.glob("*-user/result.json"))
    hint = f" ({others[0]} was chosen by the rule user, for a user's own data)" if others else ""
    raise UsageError(
        f"{folder} holds no finished tuning by the rule benchmark{hint}; run pour tune --out {folder} first."
    )


def starting_options(method: str, dataset: str) -> dict[str, Any]:
    """What tuning starts from in place of a method's own defaults.

    AdamW at a small rate and fewer steps where networks are pretrained, and an end where a method has none.

    Example:
        >>> starting_options("delete", "pathmnist"), starting_options("delete", "cifar10")
        ({'lr': 3e-06, 'optimizer': 'adamw', 'weight_decay': 0.0}, {})
    """
    kind = get_method(method)
    length = _STARTING_BY_DATASET.get((method, dataset), {})
    if dataset not in _PRETRAINED or not issubclass(kind, IterativeMethod):
        return dict(length)
    return {**dict.fromkeys(kind.rate_options, _PRETRAINED_RATE), "optimizer": "adamw", "weight_decay": 0.0, **length}


def _from_start(method: str, dataset: str, chosen: dict[str, Any]) -> dict[str, Any]:
    """The options of a tuned row: what tuning starts from, and over it what it chose."""
    return {"batch_norm": "frozen", **starting_options(method, dataset), **chosen}


def freeze_tuning(folder: str | Path, dataset: str, *, into: str | Path = TUNED) -> list[str]:
    """Take the choices of a finished tuning into the file that ships with pour; returns the methods' names.

    Every option is written, not only those that were searched: a method's default that changes later must not change
    a row that was tuned before.

    Args:
        folder: where :func:`pour.bench.tune` wrote its trials by the rule ``benchmark``.
        dataset: what it was tuned on.
        into: the file, whose other datasets and methods stay.
    """
    source, target = Path(folder), Path(into)
    methods = sorted(path.parent.name.removesuffix("-benchmark") for path in source.glob("*-benchmark/result.json"))
    chosen = {
        method: {**found, "options": make_method(method, **_from_start(method, dataset, found["options"])).options()}
        for method in methods
        if (found := _choice(source, method)) is not None
    }
    if not chosen:
        raise UsageError(f"{source} holds no tuning by the rule benchmark that chose a setting; run pour tune first.")
    other = next((found["dataset"] for found in chosen.values() if found["dataset"] not in (None, dataset)), None)
    if other is not None:
        raise UsageError(f"{source} was tuned on {other}, not on {dataset}.")
    known = _read(target) if target.is_file() else {}
    known[dataset] = {**known.get(dataset, {}), **chosen}
    write_text(target, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return list(chosen)


def _frozen_choice(method: str, dataset: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = _read(TUNED).get(dataset, {}).get(method) if TUNED.is_file() else None
    return None if found is None else {**dict.fromkeys(_SUBJECT), **found}


def _choice(folder: Path, method: str) -> dict[str, Any] | None:
    path = folder / f"{method}-benchmark" / "result.json"
    if not path.is_file():
        return None
    result = _read(path)
    try:
        if result["best"] is None:
            return None
        options = result["trials"][result["best"]]["options"]
        facts = {name: result[name] for name in ("rule", "seed", "note")}
        facts |= {name: result.get(name) for name in _SUBJECT}
        if not isinstance(options, dict) or not isinstance(facts["forgotten"], list | None):
            raise TypeError("options or forgotten classes of another kind")
        return {"options": options, **facts}
    except (KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{path} is no tuning result ({error!r}); run pour tune again.") from error


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as JSON ({error}); run pour tune again.") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds a {type(found).__name__}, not a tuning result; run pour tune again.")
    return found
