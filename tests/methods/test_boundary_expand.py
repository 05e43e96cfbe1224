from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_requests import CLASSES, FORGET, FORGOTTEN, NOTHING, losses, tiny_net, unlearn
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.methods.boundary_expand import _widened
from pour.unlearning import ForgetRequest


def test_the_head_returns_to_its_rows() -> None:
    model = tiny_net()
    result = unlearn(model, "boundary-expand", lr=0.01, epochs=3)
    assert result.state_dict().keys() == model.state_dict().keys()
    assert result[-1].weight.shape == (CLASSES, 5)
    assert type(result[-1]) is nn.Linear
    assert not torch.equal(result[-1].weight, model[-1].weight)
    assert not torch.equal(result[0].weight, model[0].weight)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("make", [lambda bias: nn.Linear(5, 4, bias=bias), lambda bias: nn.Conv2d(5, 4, 1, bias=bias)])
def test_the_extra_row_is_xavier_with_a_zero_bias(make: object, bias: bool) -> None:
    layer = make(bias)  # type: ignore[operator]
    wide = _widened(layer)
    assert type(wide) is type(layer)
    assert torch.equal(wide.weight[:4], layer.weight)
    bound = (6 / (5 + 5)) ** 0.5
    assert 0 < float(wide.weight[4].detach().abs().max()) <= bound
    if bias:
        assert wide.bias is not None
        assert torch.equal(wide.bias[:4], layer.bias)
        assert wide.bias[4].item() == 0
    else:
        assert wide.bias is None


def test_every_image_is_taught_the_extra_class() -> None:
    """Before the first step, the loss is that of C + 1 scores, the last from the drawn row."""
    model = tiny_net()
    result = unlearn(model, "boundary-expand", lr=NOTHING, epochs=1)
    torch.manual_seed(0)
    wide = _widened(model[-1])
    encoder = model[:-1]

    def loss(images: Tensor) -> float:
        return F.cross_entropy(wide(encoder(images)), torch.full((len(images),), CLASSES)).item()

    assert losses(result) == pytest.approx([loss(images) for images, _ in FORGET], rel=1e-5)


def test_frozen_parameters_stay_frozen() -> None:
    model = tiny_net()
    model[-1].requires_grad_(False)
    result = unlearn(model, "boundary-expand", lr=0.01, epochs=3)
    assert torch.equal(result[-1].weight, model[-1].weight)
    assert not result[-1].weight.requires_grad


def test_a_projected_model_is_refused() -> None:
    projected = pour.forget(tiny_net(), classes=[0])
    with pytest.raises(UsageError, match="fold the projected model first"):
        unlearn(projected, "boundary-expand", ForgetRequest(classes=[FORGOTTEN], forget=FORGET))
