"""Layers whose weight is computed, so that what is written into it would be lost."""

from __future__ import annotations

import pytest
import torch
from small_requests import CLASSES, small_request, tiny_net, unlearn
from torch import nn

import pour
from pour.errors import UsageError
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.clip.zero_shot import zero_shot_classifier


@pytest.mark.parametrize("method", ["masked-head", "projun", "boundary-expand"])
def test_a_computed_weight_is_one_sentence(method: str) -> None:
    model = tiny_net()
    nn.utils.parametrizations.weight_norm(model[-1])  # type: ignore[index]
    with pytest.raises(UsageError, match=rf"'5' computes its weight .*, so {method} cannot change it; make it plain"):
        unlearn(model, method)
    nn.utils.parametrize.remove_parametrizations(model[-1], "weight")  # type: ignore[index]
    assert not torch.equal(unlearn(model, method).state_dict()["5.weight"], model.state_dict()["5.weight"])


def test_an_encoder_layer_that_computes_its_weight_is_named() -> None:
    model = tiny_net()
    nn.utils.parametrizations.weight_norm(model[0])  # type: ignore[index]
    with pytest.raises(UsageError, match="The layer '0' computes its weight"):
        unlearn(model, "projun")


def test_a_head_of_texts_gets_no_further_row() -> None:
    model = zero_shot_classifier(ImageTextEncoder(16, width=4, blocks=(1,), in_channels=1), torch.randn(CLASSES, 16))
    with pytest.raises(UsageError, match="'head' is a TextHead that computes more than W z"):
        unlearn(model, "boundary-expand")
    assert pour.history(unlearn(model, "masked-head", small_request()))[-1].method == "masked-head"


def test_further_parameters_of_a_head_stay() -> None:
    class Tagged(nn.Linear):
        """A plain head that carries something along."""

        def __init__(self) -> None:
            super().__init__(5, CLASSES)
            self.tag = nn.Parameter(torch.ones(2))

    model = tiny_net()
    model[-1] = Tagged()  # type: ignore[index]
    result = unlearn(model, "boundary-expand", lr=0.01, epochs=2)
    assert type(result[-1]) is Tagged  # type: ignore[index]
    assert torch.equal(result[-1].tag, torch.ones(2))  # type: ignore[index, union-attr]
    assert not torch.equal(result[-1].weight, model[-1].weight)  # type: ignore[index, union-attr]
