from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_requests import FORGET, batches, small_request, tiny_net, unlearn
from torch import Tensor

from pour.errors import UsageError
from pour.methods.salun import saliency_mask
from pour.unlearning import make_method


def gradient_sizes(model: torch.nn.Module) -> np.ndarray:
    """|sum over forget batches of the gradient|, every weight in one row."""
    parameters = list(model.parameters())
    total = [np.zeros(parameter.shape) for parameter in parameters]
    for images, labels in FORGET:
        loss = F.cross_entropy(model(images), labels)
        for place, gradient in zip(total, torch.autograd.grad(loss, parameters), strict=True):
            place += gradient.double().numpy()
    return np.abs(np.concatenate([gradient.ravel() for gradient in total]))


def in_one_row(tensors: list[Tensor]) -> np.ndarray:
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in tensors])


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_mask_has_the_largest_gradients(share: float) -> None:
    model = tiny_net()
    mask = in_one_row(saliency_mask(model, list(model.parameters()), FORGET, share))
    sizes = gradient_sizes(model)
    assert mask.sum() == round(share * len(mask))
    if share < 1:
        assert sizes[mask].min() >= sizes[~mask].max() - 1e-7


def test_the_gradients_of_batches_are_summed_before_their_absolute_value_is_taken() -> None:
    """The first input changes its sign between the batches, so its gradients cancel; the small second one adds up."""
    model = torch.nn.Linear(2, 2, bias=False)
    torch.nn.init.zeros_(model.weight)
    forget = [(torch.tensor([[sign, 0.1]]), torch.tensor([0])) for sign in (1.0, -1.0)]
    (mask,) = saliency_mask(model, [model.weight], forget, 0.5)
    assert mask.tolist() == [[False, True], [False, True]]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_masked_weights_end_bit_for_bit_as_they_began(optimizer: str) -> None:
    model = tiny_net()
    mask = in_one_row(saliency_mask(model, list(model.parameters()), FORGET, 0.3))
    result = unlearn(model, "salun", share=0.3, epochs=4, lr=0.05, momentum=0.9, weight_decay=0.2, optimizer=optimizer)
    before, after = in_one_row(list(model.parameters())), in_one_row(list(result.parameters()))
    assert np.array_equal(before[~mask].view(np.uint32), after[~mask].view(np.uint32))
    assert (before[mask] != after[mask]).mean() > 0.9


def test_weights_that_no_score_depends_on_are_not_in_the_mask() -> None:
    model = tiny_net()
    spare = torch.nn.Parameter(torch.ones(3))
    mask = saliency_mask(model, [*model.parameters(), spare], FORGET, 0.3)
    assert not mask[-1].any()
    assert torch.equal(mask[0], saliency_mask(model, list(model.parameters()), FORGET, 0.31)[0])


def test_all_weights_move_with_a_share_of_one() -> None:
    model = tiny_net()
    result = unlearn(model, "salun", share=1.0, epochs=2, lr=0.05, weight_decay=0.2)
    assert (in_one_row(list(model.parameters())) != in_one_row(list(result.parameters()))).all()


def test_a_class_forgotten_before_is_no_random_label(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []

    def spy(batches: object, labels: list[int], seed: int) -> object:
        seen.append(labels)
        return batches

    monkeypatch.setattr("pour.methods.salun.with_random_labels", spy)
    first = unlearn(tiny_net(), "salun", steps=1)
    forget, retain = batches(1, 4, (0,), seed=1), batches(1, 4, (1, 3), seed=2)
    unlearn(first, "salun", small_request(classes=[0], forget=forget, retain=retain), steps=1)
    assert seen == [[0, 1, 2, 3], [0, 1, 3]]


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="share must be above 0 and at most 1, but is 0"):
        make_method("salun", share=0.0)
