from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_requests import FORGET, NOTHING, RETAIN, VALIDATION, tiny_net, unlearn

import pour.methods.sure as sure
from pour.errors import UsageError
from pour.methods.sure import ramp, reverse_gradient
from pour.unlearning import make_method

if TYPE_CHECKING:
    from torch import nn


def test_the_gradient_comes_back_reversed_and_the_features_unchanged() -> None:
    features = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    slope = torch.arange(12.0).reshape(3, 4)
    passed = reverse_gradient(features, torch.tensor(0.7))
    assert torch.equal(passed, features)
    (passed * slope).sum().backward()
    torch.testing.assert_close(features.grad, -0.7 * slope)


def test_the_reversal_rises_from_nothing() -> None:
    values = [ramp(progress) for progress in np.linspace(0, 1, 11)]
    assert values[0] == 0
    assert values == sorted(values)
    assert values[-1] == pytest.approx(1, abs=1e-4)


def test_the_reversal_rises_over_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    weights: list[float] = []

    def watch(features: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        weights.append(float(weight))
        return reverse_gradient(features, weight)

    monkeypatch.setattr(sure, "reverse_gradient", watch)
    unlearn(tiny_net(), "sure", epochs=2, lr=NOTHING, strength=0.7)
    share = np.arange(2 * len(RETAIN)) / (2 * len(RETAIN))
    assert weights == pytest.approx(0.7 * (2 / (1 + np.exp(-10 * share)) - 1))


def test_a_step_fools_the_domain_classifier_while_that_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    model, lr, strength = tiny_net(), 0.1, 0.7
    pairs: list[nn.Module] = []

    class Kept(sure._Adversaries):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            pairs.append(self)
            pairs.append(copy.deepcopy(self))

    monkeypatch.setattr(sure, "_Adversaries", Kept)
    monkeypatch.setattr(sure, "ramp", lambda progress: 1.0)
    unlearn(model, "sure", steps=1, lr=lr, momentum=0.0, strength=strength, batch_norm="frozen")
    after, before = pairs
    kept, names = RETAIN[0]
    seen = torch.cat([FORGET[0][0], VALIDATION[0][0]])
    domain = torch.cat([torch.ones(4), torch.zeros(5)])
    encoder, classifier = before.network.eval(), before.domain
    keep = F.cross_entropy(encoder(kept), names)
    tell = F.binary_cross_entropy_with_logits(classifier(encoder[:-1](seen)).squeeze(1), domain)
    for name, weight, loss in (("network.0", -strength, tell), ("domain.0", 1.0, tell)):
        parameter = before.get_parameter(f"{name}.weight")
        expected = weight * torch.autograd.grad(loss, parameter, retain_graph=True)[0]
        if name.startswith("network"):
            expected = expected + torch.autograd.grad(keep, parameter, retain_graph=True)[0]
        moved = (after.get_parameter(f"{name}.weight") - parameter).detach()
        torch.testing.assert_close(moved, -lr * expected, rtol=1e-3, atol=1e-6)


def test_the_domain_classifier_is_not_left_in_the_model() -> None:
    model = tiny_net()
    assert unlearn(model, "sure", steps=2).state_dict().keys() == model.state_dict().keys()


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="width must be at least 1, but is 0"):
        make_method("sure", width=0)
