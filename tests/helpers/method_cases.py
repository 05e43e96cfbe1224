"""Options of each method for the conformance suite on the digits. A new method needs one line in ``CASES``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pour
from pour.unlearning import IterativeMethod, get_method


@dataclass(frozen=True)
class Case:
    """Options of a method, and the result to expect."""

    options: dict[str, Any] = field(default_factory=dict)
    """Options for 1295 + 147 small images instead of tens of thousands: larger rates, fewer steps. The original was
    trained without augmentation, so iterative methods go without it too."""
    brief: dict[str, Any] | None = None
    """Options of a short run, for tests without accuracies; by default two steps of an iterative method."""
    several: dict[str, Any] = field(default_factory=dict)
    """Further options to forget two classes."""
    drop: float = 0.03
    """Largest fall of the accuracy on retained test images."""
    forgets: bool = True
    """Whether accuracy on the class must fall below chance; if not, ``reason`` explains it."""
    reason: str = ""


SMALL: dict[str, Any] = {"batch_size": 32, "augment": False}
CASES: dict[str, Case] = {
    "bad-teacher": Case(SMALL | {"batch_size": 64, "epochs": 3, "lr": 1e-3}),
    "boundary-expand": Case(
        SMALL | {"steps": 20, "lr": 3e-5},
        drop=0.03,
        forgets=False,
        reason="once the extra row is dropped the class competes again; some accuracy is expected to come back",
    ),
    "boundary-shrink": Case(
        SMALL | {"steps": 40, "epsilon": 0.2},
        several={"epsilon": 0.5},
        drop=0.06,
        reason="a step of 0.1 seldom fools the original on digits",
    ),
    "delete": Case(SMALL | {"steps": 40, "lr": 1e-5}),
    "duck": Case(SMALL | {"batch_size": 64, "retain_batches": 10, "repair_epochs": 1}, brief={"epochs": 1}),
    "esc": Case({"rank": 2}, reason="the published share of 64 features is less than one direction"),
    "fcs": Case(
        {"batch_size": 32, "epochs": 4, "flatten_lr": 0.02, "contrast_lr": 0.01, "lr": 0.01},
        brief={"epochs": 1},
        drop=0.06,
        reason="the published rates are for hundreds of steps",
    ),
    "finetune": Case({"batch_size": 64, "epochs": 4}),
    "gradient-ascent": Case(
        SMALL | {"steps": 60, "lr": 3e-4, "loss_cap": 6.0, "clip": 1.0},
        drop=0.3,
        reason="nothing holds the retained classes while the loss climbs",
    ),
    "l1-sparse": Case({"batch_size": 64, "epochs": 8}, drop=0.06, reason="the penalty prunes the rest as well"),
    "leace": Case(drop=0.01),
    "leace-orth": Case(drop=0.01),
    "masked-head": Case(drop=0.0, reason="an answer less can only help the rest"),
    "neggrad-plus": Case(SMALL | {"batch_size": 64, "epochs": 3}),
    "pour-d": Case(SMALL),
    "pour-a": Case({"steps": 200, "lr": 1e-3}, brief={"steps": 2}),
    "pour-p": Case(drop=0.01, reason="on a collapsed model retained scores shift alike"),
    "projun": Case({"alpha_forget": 10.0, "images": 300}, drop=0.03),
    "random-direction": Case(drop=0.02, forgets=False, reason="a control: the direction means nothing"),
    "random-label": Case(SMALL | {"steps": 40, "lr": 1e-5}),
    "retrain": Case({"epochs": 8}, brief={"epochs": 1}),
    "salun": Case(SMALL | {"batch_size": 64, "epochs": 4, "lr": 0.02}),
    "scrub": Case(
        SMALL | {"batch_size": 64, "forget_batch_size": 32, "lr": 0.01},
        brief={"epochs": 1, "ascent_epochs": 1},
        drop=0.06,
        reason="18 steps to an epoch repair less than 350",
    ),
    "ssd": Case(
        {"selection": 50.0, "batch_size": 32},
        several={"selection": 15.0},
        reason="importances differ by at most 1 / share^2 of the forget images: 100 for one class in ten, 25 for two",
    ),
    "sure": Case(
        SMALL | {"batch_size": 64, "epochs": 10}, drop=0.06, reason="the reversed gradient moves all features"
    ),
    "text-direction": Case(drop=0.02),
    "unsir": Case({"batch_size": 64, "epochs": 2, "lr": 0.01, "repair_lr": 0.003}),
}

NAMES = [info.name for info in pour.list_methods() if get_method(info.name).__module__.startswith("pour.methods.")]
"""Methods of pour itself; the suite does not test methods of other installed packages."""
ITERATIVE = [name for name in NAMES if issubclass(get_method(name), IterativeMethod)]


def case_of(name: str) -> Case:
    return CASES.get(name, Case())
