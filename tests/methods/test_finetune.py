from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small_requests import RETAIN, small_request, tiny_net, unlearn


def test_a_step_is_plain_sgd_on_retained_images() -> None:
    model = tiny_net()
    lr, decay = 0.3, 0.1
    images, labels = RETAIN[0]
    gradients = torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()))
    expected = [p.detach() - lr * (g + decay * p.detach()) for p, g in zip(model.parameters(), gradients, strict=True)]
    request = small_request(forget=None, retain=RETAIN[:1])
    result = unlearn(model, "finetune", request, steps=1, lr=lr, weight_decay=decay, momentum=0.0, batch_norm="frozen")
    for parameter, value in zip(result.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.detach(), value)


@pytest.mark.parametrize(("mode", "moves"), [("train", True), ("frozen", False)])
def test_statistics_follow_the_retained_images_unless_frozen(mode: str, moves: bool) -> None:
    model = tiny_net()
    result = unlearn(model, "finetune", steps=2, batch_norm=mode)
    assert torch.equal(result[1].running_mean, model[1].running_mean) is not moves  # type: ignore[index]


def test_statistics_follow_by_default() -> None:
    model = tiny_net()
    assert not torch.equal(unlearn(model, "finetune", steps=1)[1].running_mean, model[1].running_mean)  # type: ignore[index]
