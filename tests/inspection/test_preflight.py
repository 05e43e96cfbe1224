"""The check of models, data and roles before any work."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from preflight_setups import NORMALISATIONS, Expecting, batches, dataset, floats, needs_cifar10, network
from torch import nn

import pour

QUIET: dict[str, Any] = {"device": "cpu", "progress": False}


def untrained() -> nn.Module:
    torch.manual_seed(0)
    return pour.build_model("resnet-digits", 10, in_channels=1, image_size=8)


def audit(**models: Any) -> Any:
    return pour.audit(**{"data": dataset("digits"), "classes": [3], **QUIET, **models})


def test_an_original_that_never_knew_the_class_is_not_unlearned(digits_splits: pour.Splits) -> None:
    with pytest.raises(pour.UsageError, match=r"recognises 0\.0 % of 147 images .*chance is 10\.0 %.*untrained"):
        pour.unlearn(untrained(), pour.ForgetRequest.of(digits_splits), method="delete", steps=1, **QUIET)


def test_an_untrained_original_is_not_audited() -> None:
    model = untrained()
    with pytest.raises(pour.UsageError, match="answers by chance: the network seems to be untrained"):
        audit(original=model, unlearned=pour.forget(model, classes=[3]))


@pytest.mark.slow
@needs_cifar10
def test_images_that_are_not_normalised_are_named() -> None:
    """A network for normalised images gets images in [0, 1]."""
    model = Expecting(network("cifar10"), *NORMALISATIONS["ImageNet"])
    split = dataset("cifar10").splits["test"]
    few = split.take(list(range(400)))
    data = {name: batches(floats(few), few.labels) for name in ("train", "test")}
    forgotten = pour.forget(model, classes=[0], example=data["test"][0][0])
    with pytest.raises(pour.UsageError, match=r"With changed inputs it recognises 8.*normalised images"):
        pour.audit(original=model, unlearned=forgotten, data=data, classes=[0], **QUIET)


@pytest.mark.parametrize(
    ("role", "words"),
    [
        ("swapped", "seem to be swapped"),
        ("same", "The original and the unlearned model have the same weights"),
        ("retrained is the original", "The original and the retrained model have the same weights"),
        ("retrained is POUR-P", "The retrained model has a history of forgetting '3' with pour-p"),
        ("another class", "history has forgotten '3', not '5'"),
    ],
)
def test_models_that_do_not_have_their_roles_are_refused(digits_original: nn.Module, role: str, words: str) -> None:
    forgotten = pour.forget(digits_original, classes=[3])
    copied = pour.models.copy_and_swap.copy_model(digits_original)
    models: dict[str, Any] = {
        "swapped": {"original": forgotten, "unlearned": digits_original},
        "same": {"original": digits_original, "unlearned": copied},
        "retrained is the original": {"original": digits_original, "unlearned": forgotten, "retrained": copied},
        "retrained is POUR-P": {
            "original": digits_original,
            "unlearned": forgotten,
            "retrained": pour.forget(digits_original, classes=[3], forgotten_logit="keep"),
        },
        "another class": {"original": digits_original, "unlearned": forgotten, "classes": [5]},
    }
    with pytest.raises(pour.UsageError, match=words):
        audit(**models[role])


def test_the_audit_keeps_the_sentence_of_a_forced_contradiction(digits_original: nn.Module) -> None:
    forgotten = pour.forget(digits_original, classes=[3])
    with pytest.warns(UserWarning, match="history has forgotten '3', not '5'"):
        report = audit(original=digits_original, unlearned=forgotten, classes=[5], force=True)
    assert any("history has forgotten '3', not '5'" in note for note in report.notes)


def test_the_history_keeps_the_sentence_of_a_forced_request(digits_splits: pour.Splits) -> None:
    request = pour.ForgetRequest.of(digits_splits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = pour.unlearn(untrained(), request, method="delete", steps=1, force=True, **QUIET)
    assert "the network is untrained" in pour.history(result)[-1].notes[0]


def test_training_records_the_classes_that_it_left_out(digits_original: nn.Module, tmp_path: Any) -> None:
    from pour.training import Run, get_recipe, get_task

    task, digits = get_task("classify"), dataset("digits")
    recipe = get_recipe("digits", {"epochs": 1})
    run = Run(seed=0, progress=False, device="cpu")
    model, _ = task.train(digits, recipe, run, arch="resnet-digits", without=["3"])
    task.record_scores(model, task.describe(model, digits, run, without=["3"]))
    loaded = pour.load(pour.save(model, tmp_path / "m.safetensors"))
    record = pour.models.card.card_of(loaded).training
    assert record is not None
    assert (record.dataset, record.left_out) == ("digits", (3,))
    assert record.class_accuracy[3] == 0
    with pytest.raises(pour.UsageError, match="The original was trained without '3'"):
        audit(original=loaded, unlearned=pour.forget(loaded, classes=[3]))
