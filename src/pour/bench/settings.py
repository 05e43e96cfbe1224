"""The two settings of every iterative method, and the options of those that have nothing to tune."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._files import write_text
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.methods.iterative import IterativeMethod

__all__ = [
    "CLOSED_FORM",
    "CLOSED_FORM_BY_DATASET",
    "NOT_TUNED",
    "closed_form_options",
    "common_options",
    "freeze_tuning",
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

CLOSED_FORM: dict[str, tuple[str, ...]] = {"esc": ("esc-1", "esc")}
"""Methods without optimisation that have more than one row."""
CLOSED_FORM_BY_DATASET: dict[tuple[str, str], tuple[str, ...]] = {("pour-p", "pathmnist"): ("pour-p-mask", "pour-p")}
"""The same for single datasets; the row that the paper's value belongs to comes last."""
# POUR-P keeps the class's own score, as printed in the paper; masking it would forget on its own.
_CLOSED_FORM_OPTIONS: dict[str, dict[str, Any]] = {
    "pour-p": {"forgotten_logit": "keep"},
    "pour-p-mask": {"forgotten_logit": "mask"},
    "esc-1": {"rank": 1},
}
# Of its authors' scripts, which have a setting for each dataset.
_CLOSED_FORM_BY_DATASET: dict[tuple[str, str], dict[str, Any]] = {
    ("projun", "cifar100"): {"alpha_retain": 1000.0, "alpha_forget": 30.0, "images": 990}
}


def common_options(method: type[IterativeMethod], dataset: str) -> dict[str, Any]:
    """The rivals' common code base: one learning rate, 20 epochs, batches of 128, BatchNorm in train mode.

    Example:
        >>> from pour.methods import get_method
        >>> common_options(get_method("delete"), "cifar100")["lr"]
        5e-05
    """
    rate = _COMMON_RATE.get(dataset, _USUAL_RATE)
    return {**dict.fromkeys(method.rate_options, rate), **_COMMON, **_COMMON_EXTRAS.get(method.name, {})}


def closed_form_options(row: str, dataset: str) -> dict[str, Any]:
    """The options of a row that has nothing to tune."""
    return {**_CLOSED_FORM_OPTIONS.get(row, {}), **_CLOSED_FORM_BY_DATASET.get((row, dataset), {})}


def tuned_options(method: str, dataset: str, folder: Path | None = None) -> tuple[dict[str, Any], str]:
    """What tuning chose for a method, BatchNorm frozen, and where that comes from; the method's defaults without.

    Args:
        method: an iterative method.
        dataset: what it was tuned on.
        folder: where :func:`pour.bench.tune` wrote its trials; by default what ships with pour.
    """
    frozen = {"batch_norm": "frozen"}
    found = _frozen_choice(method, dataset) if folder is None else _choice(folder, method)
    if found is None:
        return frozen, f"{NOT_TUNED}: the method's defaults"
    return {**found["options"], **frozen}, f"tuned by the rule {found['rule']!r} with seed {found['seed']}"


def freeze_tuning(folder: str | Path, dataset: str, *, into: str | Path = TUNED) -> list[str]:
    """Take the choices of a finished tuning into the file that ships with pour; returns the methods' names.

    Args:
        folder: where :func:`pour.bench.tune` wrote its trials by the rule ``benchmark``.
        dataset: what it was tuned on.
        into: the file, whose other datasets and methods stay.
    """
    source, target = Path(folder), Path(into)
    methods = sorted(path.parent.name.removesuffix("-benchmark") for path in source.glob("*-benchmark/result.json"))
    chosen = {method: found for method in methods if (found := _choice(source, method)) is not None}
    if not chosen:
        raise UsageError(f"{source} holds no tuning by the rule benchmark that chose a setting; run pour tune first.")
    known = _read(target) if target.is_file() else {}
    known[dataset] = {**known.get(dataset, {}), **chosen}
    write_text(target, json.dumps(known, indent=1, sort_keys=True) + "\n")
    return list(chosen)


def _frozen_choice(method: str, dataset: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = _read(TUNED).get(dataset, {}).get(method) if TUNED.is_file() else None
    return found


def _choice(folder: Path, method: str) -> dict[str, Any] | None:
    path = folder / f"{method}-benchmark" / "result.json"
    if not path.is_file():
        return None
    result = _read(path)
    try:
        if result["best"] is None:
            return None
        options = result["trials"][result["best"]]["options"]
        return {"options": options, "rule": result["rule"], "seed": result["seed"], "note": result["note"]}
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
