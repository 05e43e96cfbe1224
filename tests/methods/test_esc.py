from __future__ import annotations

import numpy as np
import pytest
import torch
from small_requests import FORGET, FORGOTTEN, small_request, tiny_net, unlearn
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.methods.esc import Esc
from pour.models.head import find_head
from pour.training.run import Run
from pour.unlearning import ForgetRequest, make_method


def _forget_features(model: nn.Module) -> np.ndarray:
    with torch.no_grad():
        return np.asarray(torch.cat([model[:-1](images) for images, _ in FORGET]).double())


def _images() -> Tensor:
    return torch.rand(20, 1, 6, 6, generator=torch.Generator().manual_seed(7))


def test_rank_one_is_pour_p_on_the_top_singular_direction() -> None:
    model = tiny_net()
    top = np.linalg.svd(_forget_features(model))[2][0]
    expected = pour.forget(
        model, classes=[FORGOTTEN], directions=torch.tensor(top, dtype=torch.float32), forgotten_logit="keep"
    )
    result = unlearn(model, "esc", rank=1)
    torch.testing.assert_close(result(_images()), expected(_images()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_it_removes_the_top_singular_directions_of_the_uncentred_features(rank: int) -> None:
    model = tiny_net()
    right = np.linalg.svd(_forget_features(model))[2]
    kept = np.eye(5) - right[:rank].T @ right[:rank]
    result = unlearn(model, "esc", rank=rank)
    with torch.no_grad():
        expected = model[-1](model[:-1](_images()) @ torch.tensor(kept, dtype=torch.float32))
    torch.testing.assert_close(result(_images()), expected, rtol=1e-3, atol=1e-4)


def test_the_share_of_the_width_gives_the_rank() -> None:
    model = tiny_net()
    ranks = {}
    for share in (0.015, 0.4, 0.79):
        result = unlearn(model, "esc", share=share)
        ranks[share] = find_head(result).module.projector.rank  # type: ignore[union-attr]
    # int(5 * share), but at least one: the published 1.5 % of 512 is 7.
    assert ranks == {0.015: 1, 0.4: 2, 0.79: 3}
    assert max(1, int(512 * Esc().share)) == 7


def test_the_energy_removed_is_logged() -> None:
    model, run = tiny_net(), Run(device="cpu", progress=False)
    values = np.linalg.svd(_forget_features(model), compute_uv=False) ** 2
    Esc(rank=2)(model, small_request().grant(("forget",), name="esc"), run)
    assert run.history[0]["energy_removed"] == pytest.approx(values[:2].sum() / values.sum(), rel=1e-4)


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match=r"share must be above 0 and below 1, but is 1.5"):
        make_method("esc", share=1.5)
    with pytest.raises(UsageError, match="rank must be at least 1, but is 0"):
        make_method("esc", rank=0)
    with pytest.raises(UsageError, match="cannot remove 9 directions"):
        unlearn(tiny_net(), "esc", rank=9)
    few = ForgetRequest(classes=[FORGOTTEN], forget=[(torch.zeros(1, 1, 6, 6), torch.tensor([FORGOTTEN]))])
    with pytest.raises(UsageError, match="span only 1 of 5 dimensions"):
        unlearn(tiny_net(), "esc", few, rank=2)
