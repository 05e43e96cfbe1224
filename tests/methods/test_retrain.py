from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from small_requests import small_request, tiny_net, unlearn

import pour
from pour.data.splits import Splits
from pour.errors import UsageError
from pour.models import build_model
from pour.training import Recipe, Run, get_recipe
from pour.training.tasks.classify import Classify
from pour.unlearning import ForgetRequest, make_method

if TYPE_CHECKING:
    from torch import nn

    from pour.data.dataset import ImageDataset

SHORT = get_recipe("digits").change(epochs=2)


def fresh() -> nn.Module:
    return build_model("resnet-digits", 10, in_channels=1, image_size=8)


def test_makes_what_training_without_the_class_makes(digits: ImageDataset, digits_original: nn.Module) -> None:
    run = Run(seed=5, device="cpu", progress=False)
    expected, log = Classify().train(digits, SHORT, run, arch="resnet-digits", without=["3"])
    splits = Splits.of(digits, ["3"])
    # No forget images are offered, so none can be seen.
    request = ForgetRequest(
        classes=["3"], retain=splits.retain_train, build=fresh, recipe=SHORT, mirrors=splits.mirrors
    )
    result = pour.unlearn(digits_original, request, method="retrain", seed=5, device="cpu", progress=False)
    for name, tensor in expected.state_dict().items():
        assert torch.equal(result.state_dict()[name], tensor), name
    assert list(pour.history(result)[-1].losses) == log.losses
    assert result is not digits_original


def test_options_change_the_recipe() -> None:
    request = small_request(recipe=Recipe(steps=50, batch_size=4, lr=0.01))
    result = unlearn(tiny_net(), "retrain", request, epochs=2, lr=0.02)
    assert len(pour.history(result)[-1].losses) == 2 * 3


def test_the_recipe_must_be_known() -> None:
    with pytest.raises(UsageError, match=r"pass recipe= in the request.*fast, long, short, digits"):
        unlearn(tiny_net(), "retrain")
    with pytest.raises(UsageError, match="no recipe 'slow'"):
        small_request(recipe="slow")
    with pytest.raises(UsageError, match="lr must be above 0"):
        make_method("retrain", lr=-1.0)


def test_the_fresh_model_must_have_as_many_scores() -> None:
    with pytest.raises(UsageError, match=r"build= .* 10 scores, but the model has 4"):
        unlearn(tiny_net(), "retrain", small_request(build=fresh, recipe=SHORT))
