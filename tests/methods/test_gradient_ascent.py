from __future__ import annotations

import pytest
import torch
from small_requests import FORGET, FORGOTTEN, NOTHING, cross_entropy, losses, small_request, tiny_net, unlearn
from torch import nn

from pour.errors import DivergenceError, UsageError
from pour.methods.gradient_ascent import GradientAscent
from pour.training.run import Run
from pour.unlearning import make_method
from pour.unlearning.forget_only import forget_accuracy


def _confident() -> nn.Module:
    """A network that calls everything the forgotten class."""
    model = tiny_net()
    with torch.no_grad():
        model[-1].bias[FORGOTTEN] += 2.0  # type: ignore[index, operator]
    return model


def test_the_loss_is_minus_cross_entropy() -> None:
    model = _confident()
    result = unlearn(model, "gradient-ascent", lr=NOTHING, epochs=1)
    assert losses(result) == pytest.approx([-cross_entropy(model, batch) for batch in FORGET], rel=1e-5)


@pytest.mark.parametrize("look_every", [1, 3, 7])
def test_it_stops_at_the_first_look_that_sees_nothing_recognised(look_every: int) -> None:
    result = unlearn(_confident(), "gradient-ascent", lr=0.05, epochs=400, look_every=look_every)
    steps = len(losses(result))
    assert 2 <= steps < 800
    assert steps % look_every == 0
    if steps > look_every:
        before = unlearn(_confident(), "gradient-ascent", lr=0.05, epochs=None, steps=steps - look_every)
        images = torch.cat([images for images, _ in FORGET])
        assert (before(images).argmax(dim=1) == FORGOTTEN).any(), "it could have stopped a look earlier"


def test_it_stops_once_the_images_are_not_recognised() -> None:
    result = unlearn(_confident(), "gradient-ascent", lr=0.05, epochs=400)
    assert -losses(result)[-1] > -losses(result)[0]
    images = torch.cat([images for images, _ in FORGET])
    assert not (result(images).argmax(dim=1) == FORGOTTEN).any()


def test_the_trajectory_is_logged() -> None:
    run = Run(device="cpu", progress=False)
    GradientAscent(lr=0.05, epochs=400)(_confident(), small_request().grant(("forget",), name="gradient-ascent"), run)
    seen = [entry["forget_accuracy"] for entry in run.history if "forget_accuracy" in entry]
    steps = sum("loss" in entry for entry in run.history)
    at = [entry["step"] for entry in run.history if "forget_accuracy" in entry]
    assert at == [*range(0, steps + 1, 5)]
    assert seen[0] == 1.0
    assert seen[-1] <= 0.002
    assert all(value > 0.002 for value in seen[:-1])


def test_without_a_stop_rule_it_runs_to_the_end_or_diverges() -> None:
    result = unlearn(_confident(), "gradient-ascent", lr=1e-3, epochs=30, stop_accuracy=None)
    assert len(losses(result)) == 60
    with pytest.raises(DivergenceError, match="use a smaller learning rate"):
        unlearn(_confident(), "gradient-ascent", lr=3.0, epochs=400, stop_accuracy=None)


def test_the_cap_bounds_the_loss_and_ends_the_pull() -> None:
    options = {"lr": 0.05, "momentum": 0.0, "epochs": 200, "stop_accuracy": None}
    with pytest.raises(DivergenceError):
        unlearn(_confident(), "gradient-ascent", **options)
    capped = losses(unlearn(_confident(), "gradient-ascent", loss_cap=2.0, **options))
    assert -2.0 <= capped.min() < capped[0]
    still = unlearn(_confident(), "gradient-ascent", lr=1.0, epochs=2, stop_accuracy=None, loss_cap=1e-3)
    for before, after in zip(_confident().parameters(), still.parameters(), strict=True):
        assert torch.equal(before, after)


def test_clip_bounds_a_step() -> None:
    model = _confident()
    result = unlearn(model, "gradient-ascent", lr=1.0, momentum=0.0, steps=1, epochs=None, clip=0.01)
    moved = [after - before for before, after in zip(model.parameters(), result.parameters(), strict=True)]
    assert torch.cat([part.flatten() for part in moved]).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match=r"stop_accuracy must be at least 0 and below 1, but is 1.5"):
        make_method("gradient-ascent", stop_accuracy=1.5)
    with pytest.raises(UsageError, match="look_every must be at least 1, but is 0"):
        make_method("gradient-ascent", look_every=0)
    with pytest.raises(UsageError, match="loss_cap must be above 0, but is 0"):
        make_method("gradient-ascent", loss_cap=0)
    with pytest.raises(UsageError, match="clip must be above 0"):
        make_method("gradient-ascent", clip=-1.0)


def test_scores_that_are_not_finite_are_not_forgotten() -> None:
    model = tiny_net()
    with torch.no_grad():
        model[-1].bias[0] = torch.nan  # type: ignore[index]
    run = Run(device="cpu", progress=False)
    request = small_request().grant(("forget",), name="gradient-ascent")
    with pytest.raises(DivergenceError, match="scores are no longer finite; use a smaller learning rate"):
        forget_accuracy(model, request, run)
    with pytest.raises(DivergenceError, match="no longer finite"):
        unlearn(model, "gradient-ascent")
    # A masked class may well be minus infinity.
    with torch.no_grad():
        model[-1].bias[0] = -torch.inf  # type: ignore[index]
    assert 0 <= forget_accuracy(model, request, run) <= 1
