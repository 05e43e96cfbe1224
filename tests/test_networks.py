"""The networks that the tests share are those that their commands train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import pour
from pour.metrics import split_accuracy
from pour.models.tap import extract_features
from pour.training import Run, get_recipe, train_classifier
from pour.training.classifier import evaluation_loader

if TYPE_CHECKING:
    from torch import nn

    from pour.data.dataset import ImageDataset

NETWORKS = Path(__file__).parent / "networks"
RUN = Run(seed=0, device="cpu", progress=False)


def accuracies(model: nn.Module, dataset: ImageDataset) -> list[float]:
    """On test images of the other digits and of 3, in percent."""
    seen = extract_features(model, evaluation_loader(dataset.splits["test"], RUN))
    found = split_accuracy(seen.scores, seen.labels, classes=[3])
    return [100 * float(found[side]) for side in ("retain", "forget")]


def test_the_digits_networks_are_those_that_were_trained(digits: ImageDataset) -> None:
    recorded = json.loads((NETWORKS / "networks.json").read_text())["digits"]
    for name in ("original", "retrained", "retrained-second"):
        model = pour.load(NETWORKS / "digits" / f"{name}.safetensors")
        # One image of 319 is 0.31 %: another CPU may answer one otherwise.
        assert accuracies(model, digits) == pytest.approx(recorded[name]["test"], abs=0.4), name


def test_training_the_original_again_gives_as_good_a_network(digits: ImageDataset, digits_original: nn.Module) -> None:
    """To the bit only on the same kind of CPU, but the recipe must not have become another."""
    again, log = train_classifier(digits, get_recipe("digits"), RUN, arch="resnet-digits")
    assert again.state_dict().keys() == digits_original.state_dict().keys()
    for (key, one), other in zip(again.state_dict().items(), digits_original.state_dict().values(), strict=True):
        assert one.shape == other.shape, key
    assert accuracies(again, digits) == pytest.approx(accuracies(digits_original, digits), abs=3)
    assert log.losses[-1] < 0.1
