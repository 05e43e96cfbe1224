"""The values that a method's authors published are its defaults."""

from __future__ import annotations

from typing import Any

import pytest
from method_cases import NAMES

import pour.geometry.leace as leace
import pour.methods.duck as duck
import pour.methods.fcs as fcs
import pour.methods.unsir as unsir
from pour.unlearning import make_method

# One setting of DELETE's code for every method that sees forget images alone.
FORGET_ONLY = {"optimizer": "sgd", "lr": 1e-4, "momentum": 0.9, "weight_decay": 0.0, "epochs": 20, "batch_size": 128}
UNLEARN_SPARSE = {"lr": 0.01, "epochs": 10, "batch_size": 256, "weight_decay": 5e-4, "batch_norm": "train"}
PUBLISHED: dict[str, dict[str, Any]] = {
    "bad-teacher": {"optimizer": "adamw", "lr": 1e-4, "epochs": 1, "batch_size": 256, "retain_share": 0.3},
    "boundary-expand": FORGET_ONLY,
    "boundary-shrink": FORGET_ONLY | {"epsilon": 0.1},
    "delete": FORGET_ONLY,
    "duck": {
        "lambda_1": 1.0,
        "lambda_2": 1.4,
        "temperature": 2.0,
        "batch_size": 256,
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "lr": 4e-4,
        "repair_lr": 1e-4,
        "repair_epochs": 2,
        "epochs": 200,
        "retain_batches": 41,
        "stop_accuracy": 0.01,
    },
    "esc": {"share": 0.015, "rank": None},
    "fcs": {
        "flatten_lr": 5e-3,
        "contrast_lr": 3e-4,
        "lr": 4e-3,
        "weight_decay": 1e-2,
        "momentum": 0.9,
        "temperature": 1.15,
        "epochs": 8,
        "batch_size": 256,
        "augment": False,
        "batch_norm": "train",
    },
    "finetune": UNLEARN_SPARSE,
    "gradient-ascent": FORGET_ONLY,
    "l1-sparse": {"lr": 0.01, "epochs": 10},
    "leace": {"shrinkage": True},
    "neggrad-plus": {"alpha": 0.95, "lr": 0.01, "momentum": 0.9, "epochs": 10, "batch_size": 256},
    "projun": {"alpha_retain": 100.0, "alpha_forget": 3.0, "images": 900},
    "random-label": FORGET_ONLY | {"different": False},
    "salun": {"share": 0.5, "lr": 0.013, "momentum": 0.9, "epochs": 10, "batch_size": 256, "weight_decay": 5e-4},
    "scrub": {
        "gamma": 0.99,
        "alpha": 0.001,
        "temperature": 4.0,
        "ascent_epochs": 2,
        "epochs": 3,
        "lr": 5e-4,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "batch_size": 128,
        "forget_batch_size": 512,
        "batch_norm": "train",
    },
    "ssd": {"selection": 10.0, "dampening": 1.0},
    "unsir": {
        "noise_batches": 20,
        "batch_size": 256,
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "lr": 0.02,
        "repair_lr": 0.01,
        "epochs": 1,
        "per_class": 1000,
    },
}
# No authors' values: the paper and its controls say none, and SURE's code was not published.
UNPUBLISHED = {
    "leace-orth", "masked-head", "pour-a", "pour-d", "pour-p", "random-direction", "retrain", "sure", "text-direction",
}  # fmt: skip


@pytest.mark.parametrize("method", sorted(PUBLISHED))
def test_published_values_are_the_defaults(method: str) -> None:
    found = make_method(method)
    assert {option: getattr(found, option) for option in PUBLISHED[method]} == PUBLISHED[method]


def test_no_method_is_left_out() -> None:
    assert PUBLISHED.keys() | UNPUBLISHED == set(NAMES)
    assert not PUBLISHED.keys() & UNPUBLISHED


def test_published_values_that_are_no_options() -> None:
    assert fcs._LOWEST_CONTRAST_RATE == 1e-6
    assert (unsir._NOISE_LR, unsir._NOISE_STEPS, unsir._NOISE_SHRINKAGE) == (0.1, 5 * 8, 0.1)
    assert (duck._CENTROID_BATCHES, duck._REPAIR_BATCH, duck._REPAIR_FORGET_FACTOR) == (50, 512, 0.1)
    assert leace._SMALLEST_SIGNAL == 0.01
