from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import CLASSES, FORGET, FORGOTTEN, NOTHING, batches, kl, losses, small_request, tiny_net, unlearn

from pour.methods.delete import Delete, delete_target
from pour.training.run import Run


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 1000), st.integers(3, 12), st.floats(0.1, 60))
def test_the_target_sums_to_one_without_the_class(seed: int, classes: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = scale * torch.randn(16, classes, generator=generator)
    labels = torch.randint(classes, (16,), generator=generator)
    target = delete_target(scores, labels)
    torch.testing.assert_close(target.sum(dim=1), torch.ones(16))
    assert (target.gather(1, labels[:, None]) == 0).all()
    # The other classes keep their proportions.
    full = scores.double().softmax(dim=1).scatter(1, labels[:, None], 0)
    expected = full / full.sum(dim=1, keepdim=True)
    if scale < 5:
        torch.testing.assert_close(target.double(), expected, rtol=1e-4, atol=1e-6)


def test_several_classes_get_nothing() -> None:
    target = delete_target(torch.zeros(2, 5), torch.tensor([1, 3]), (1, 3))
    expected = torch.tensor([[1 / 3, 0, 1 / 3, 0, 1 / 3]] * 2)
    torch.testing.assert_close(target, expected)


def test_the_loss_is_kl_from_the_target_to_the_student() -> None:
    model = tiny_net()
    result = unlearn(model, "delete", lr=NOTHING, epochs=1)
    for loss, (images, labels) in zip(losses(result), FORGET, strict=True):
        scores = model(images)
        masked = scores.detach().clone()
        masked[torch.arange(len(labels)), labels] = -40.0
        assert loss == pytest.approx(kl(masked, scores).mean(), rel=1e-4)


@pytest.mark.parametrize("together", [True, False])
def test_no_forgotten_class_is_an_answer(together: bool) -> None:
    """Neither of two that go together, nor one that an earlier request took."""
    model = tiny_net()
    if together:
        forget = batches(2, 4, (1, FORGOTTEN), seed=1)
        result = unlearn(model, "delete", small_request(classes=[1, FORGOTTEN], forget=forget), lr=NOTHING, epochs=1)
    else:
        forget = FORGET
        first = small_request(classes=[1], forget=batches(2, 4, (1,), seed=1))
        result = unlearn(unlearn(model, "delete", first, lr=NOTHING, epochs=1), "delete", lr=NOTHING, epochs=1)
    for loss, (images, _) in zip(losses(result), forget, strict=True):
        scores = model(images)
        masked = scores.detach().clone()
        masked[:, [1, FORGOTTEN]] = -40.0
        assert loss == pytest.approx(kl(masked, scores).mean(), rel=1e-4)


def test_the_student_comes_to_predict_as_the_original_did_without_the_class() -> None:
    model = tiny_net()
    result = unlearn(model, "delete", lr=0.1, epochs=60)
    images = torch.cat([images for images, _ in FORGET])
    probability = result(images).softmax(dim=1).detach()
    wanted = delete_target(model(images), torch.full((len(images),), FORGOTTEN)).detach()
    assert float((probability - wanted).abs().max()) < 0.1


def test_the_entropy_of_the_target_is_logged() -> None:
    run = Run(device="cpu", progress=False)
    model = tiny_net()
    seen = [delete_target(model(images), labels).detach().numpy() for images, labels in FORGET]
    target = np.delete(np.concatenate(seen), FORGOTTEN, axis=1)
    Delete(lr=NOTHING, epochs=1)(model, small_request().grant(("forget",), name="delete"), run)
    assert run.history[0]["target_entropy"] == pytest.approx(-(target * np.log(target)).sum(axis=1).mean(), rel=1e-5)
    assert 0 < run.history[0]["target_entropy"] <= np.log(CLASSES - 1)
