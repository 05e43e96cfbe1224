from __future__ import annotations

import torch
from small_requests import FORGOTTEN, tiny_net
from torch import nn

import pour
from pour.models.head import find_head
from pour.unlearning import ForgetRequest


def _run(model: nn.Module, seed: int, classes: list[int]) -> nn.Module:
    request = ForgetRequest(classes=classes)
    return pour.unlearn(model, request, method="random-direction", seed=seed, device="cpu", progress=False)


def _basis(model: nn.Module) -> torch.Tensor:
    return find_head(model).module.projector.basis  # type: ignore[union-attr, return-value]


def test_the_seed_draws_the_direction() -> None:
    model = tiny_net()
    assert torch.equal(_basis(_run(model, 0, [FORGOTTEN])), _basis(_run(model, 0, [FORGOTTEN])))
    assert not torch.equal(_basis(_run(model, 0, [FORGOTTEN])), _basis(_run(model, 1, [FORGOTTEN])))


def test_as_many_directions_as_classes_and_no_relation_to_the_head() -> None:
    model = tiny_net()
    assert _basis(_run(model, 0, [0, 1])).shape == (2, 5)
    rows = nn.functional.normalize(model[-1].weight.detach()[FORGOTTEN], dim=0)
    cosines = torch.stack([(_basis(_run(model, seed, [FORGOTTEN]))[0] @ rows).abs() for seed in range(40)])
    # A random direction in five dimensions has mean squared cosine 1/5 with any other.
    assert abs(float(cosines.square().mean()) - 0.2) < 0.12


def test_it_is_pour_p_along_the_drawn_direction() -> None:
    model, images = tiny_net(), torch.rand(6, 1, 6, 6)
    result = _run(model, 4, [FORGOTTEN])
    expected = pour.forget(model, classes=[FORGOTTEN], directions=_basis(result), forgotten_logit="keep")
    torch.testing.assert_close(result(images), expected(images))
    # The class's own score is not masked: a control must be able to fail.
    assert result(images)[:, FORGOTTEN].min().item() > -1e3


def test_a_second_request_draws_another_direction() -> None:
    model = tiny_net()
    assert _basis(_run(_run(model, 0, [0]), 0, [1])).shape == (2, 5)
    torch.testing.assert_close(_basis(_run(_run(model, 0, [0]), 0, [0])), _basis(_run(model, 0, [0])))
