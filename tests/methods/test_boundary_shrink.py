from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import (
    FORGET,
    FORGOTTEN,
    NOTHING,
    RETAIN,
    Batch,
    cross_entropy,
    losses,
    small_request,
    tiny_net,
    unlearn,
)
from torch import nn

from pour.errors import UsageError
from pour.methods.boundary_shrink import BoundaryShrink, attack, nearest_class
from pour.training.run import Run
from pour.unlearning import make_method


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 1000), st.floats(0.01, 1.0))
def test_the_attack_stays_in_pixels_that_an_image_can_hold(seed: int, epsilon: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(4, 1, 6, 6, generator=generator).round(decimals=2)
    attacked = attack(tiny_net(), images, torch.full((4,), FORGOTTEN), epsilon=epsilon)
    assert float(attacked.min()) >= 0
    assert float(attacked.max()) <= 1
    torch.testing.assert_close((attacked * 255).round(), attacked * 255, rtol=0, atol=1e-4)
    assert float((attacked - images).abs().max()) <= epsilon + 0.5 / 255 + 1e-6


def test_the_attack_follows_the_sign_of_the_gradient() -> None:
    """A linear model: the gradient of the loss is W^T (p - onehot), worked out by hand."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    images, labels = torch.full((3, 1, 6, 6), 0.5), torch.tensor([0, 1, 2])
    weight = model[1].weight.detach()
    slope = (model(images).softmax(dim=1).detach() - F.one_hot(labels, 4)) @ weight
    expected = ((images + 0.1 * slope.sign().view_as(images)).clamp(0, 1) * 255).round() / 255
    torch.testing.assert_close(attack(model, images, labels, epsilon=0.1), expected)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_labels_are_the_nearest_wrong_class() -> None:
    scores = torch.tensor([[9.0, 1.0, 3.0, 2.0], [0.0, 1.0, 3.0, 2.0], [5.0, 1.0, 9.0, 2.0]])
    labels = torch.tensor([2, 2, 2])
    # The last attack failed: the image is still called 2, and that is not hidden.
    assert nearest_class(scores, labels, [2]).tolist() == [0, 2, 2]
    # Classes 0 and 2 are forgotten together, so neither is taught as the other.
    assert nearest_class(scores, labels, [0, 2]).tolist() == [2, 2, 2]
    assert nearest_class(scores, torch.tensor([0, 0, 0]), [0, 2]).tolist() == [0, 3, 0]


def test_the_loss_is_cross_entropy_to_the_attacked_images_class() -> None:
    model = tiny_net()
    result = unlearn(model, "boundary-shrink", lr=NOTHING, epochs=1, epsilon=0.5)
    expected = []
    for images, labels in FORGET:
        nearest = model(attack(model, images, labels, epsilon=0.5)).argmax(dim=1)
        expected.append(cross_entropy(model, (images, nearest)))
    assert losses(result) == pytest.approx(expected, rel=1e-5)


def two_and_a_third() -> nn.Module:
    """Light images are 1 (10 m - 1, m their mean), dark ones 2 (4 - 10 m); 3 scores 1 on all, and 0 nothing."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4)).eval()
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([0.0, 10.0, -10.0, 0.0])[:, None].expand(4, 36) / 36)
        model[1].bias.copy_(torch.tensor([0.0, -1.0, 4.0, 1.0]))
    return model


LIGHT = (torch.full((3, 1, 6, 6), 0.6), torch.full((3,), 1))
DARK = (torch.full((3, 1, 6, 6), 0.1), torch.full((3,), 2))


def test_of_two_classes_none_is_taught_as_the_other() -> None:
    model, request = two_and_a_third(), small_request(classes=[1, 2], forget=[LIGHT, DARK])
    assert [int(model(attack(model, *batch, epsilon=0.5))[0].argmax()) for batch in (LIGHT, DARK)] == [2, 1]
    result = unlearn(model, "boundary-shrink", request, lr=NOTHING, epochs=1, epsilon=0.5)
    expected = [cross_entropy(model, (images, torch.full((3,), 3))) for images, _ in (LIGHT, DARK)]
    assert losses(result) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("first", "second"), [(LIGHT, DARK), (DARK, LIGHT)])
def test_a_class_forgotten_before_is_not_taught_again(first: Batch, second: Batch) -> None:
    model = start = two_and_a_third()
    for batch in (first, second):
        request = small_request(classes=[int(batch[1][0])], forget=[batch])
        model = unlearn(model, "boundary-shrink", request, lr=NOTHING, epochs=1, epsilon=0.5)
    assert losses(model) == pytest.approx([cross_entropy(start, (second[0], torch.full((3,), 3)))], rel=1e-5)


def test_the_original_is_attacked_not_the_student() -> None:
    """The labels of the last epoch are those of the first, although the student has moved far."""
    run = Run(device="cpu", progress=False)
    model = tiny_net()
    share = []
    for images, labels in FORGET:
        share.append((model(attack(model, images, labels, epsilon=0.3)).argmax(dim=1) != labels).double())
    BoundaryShrink(lr=0.3, epochs=30, epsilon=0.3)(
        model, small_request().grant(("forget",), name="boundary-shrink"), run
    )
    logged = [entry["attack_success"] for entry in run.history if "attack_success" in entry]
    assert logged == pytest.approx([torch.cat(share).mean().item()])


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match="epsilon must be above 0 and at most 1, but is 8"):
        make_method("boundary-shrink", epsilon=8)


@pytest.mark.parametrize("method", ["boundary-shrink", "unsir"])
def test_pixels_outside_the_range_are_told(method: str) -> None:
    def moved(source: list[Batch]) -> list[Batch]:
        return [(2 * images - 1, labels) for images, labels in source]

    odd = small_request(forget=moved(FORGET), retain=moved(RETAIN))
    with pytest.warns(UserWarning, match=rf"{method} works on pixels from 0 to 1, but these go from -0.\d+ to") as said:
        unlearn(tiny_net(), method, odd)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unlearn(tiny_net(), method)
