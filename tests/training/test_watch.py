from __future__ import annotations

import copy
import itertools

import torch
from torch import nn

from pour.training import Recipe, Run, fit


def test_every_step_can_be_watched() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    alone = copy.deepcopy(model)
    batches = [(torch.rand(6, 1, 2, 2), torch.tensor([0, 1, 0, 1, 0, 1]))] * 3
    recipe = Recipe(steps=5, lr=0.1, schedule="constant")
    seen: list[tuple[int, torch.Tensor]] = []

    def look(watched: nn.Module, step: int) -> None:
        assert watched is model
        assert watched.training
        seen.append((step, watched[1].weight.detach().clone()))  # type: ignore[index]

    before = model[1].weight.detach().clone()
    fit(model, batches, recipe, Run(device="cpu", progress=False, on_step=look))
    fit(alone, batches, recipe, Run(device="cpu", progress=False))
    assert [step for step, _ in seen] == [1, 2, 3, 4, 5]
    assert torch.equal(seen[-1][1], model[1].weight)
    assert torch.equal(alone[1].weight, model[1].weight)
    weights = [before, *(weight for _, weight in seen)]
    assert all(not torch.equal(a, b) for a, b in itertools.pairwise(weights))
