"""Forgetting by score: moves of the features after which a class scores the mean of all classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_families import ConvHead
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models import ProjectedHead, find_head, fold, forget

if TYPE_CHECKING:
    from pathlib import Path

    from pour.models.projecting.forget import Direction
    from pour.models.projecting.projected_head import ForgottenLogit

SEEDS = st.integers(0, 10_000)


def head(seed: int, classes: int = 5, width: int = 9, *, bias: bool = True) -> nn.Linear:
    """A head far from a simplex: rows with a common part, unequal norms and unequal biases."""
    rng = np.random.default_rng(seed)
    layer = nn.Linear(width, classes, bias=bias, dtype=torch.float64)
    rows = rng.normal(size=(classes, width)) * rng.uniform(0.3, 3, size=(classes, 1)) + rng.normal(size=width)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
        if bias:
            layer.bias.copy_(torch.tensor(rng.normal(size=classes) * 5))
    return layer


def features(seed: int, width: int = 9, count: int = 30) -> Tensor:
    return torch.tensor(np.random.default_rng(seed + 1).normal(size=(count, width)) * 3 + 1)


def moved(model: nn.Module, z: Tensor) -> Tensor:
    module = find_head(model).module
    assert isinstance(module, ProjectedHead)
    return module.projector(z)


KINDS = pytest.mark.parametrize("direction", ["scores", "decisions"])


@KINDS
@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(4, 7), st.integers(1, 2))
def test_a_forgotten_class_scores_the_mean_and_never_wins(
    direction: Direction, seed: int, classes: int, count: int
) -> None:
    layer, z = head(seed, classes), features(seed)
    chosen = np.random.default_rng(seed).permutation(classes)[:count].tolist()
    scores = forget(layer, chosen, direction=direction, forgotten_logit="keep")(z).detach()
    torch.testing.assert_close(scores[:, chosen], scores.mean(dim=1, keepdim=True).expand(-1, count))
    kept = [label for label in range(classes) if label not in chosen]
    assert bool((scores[:, kept].max(dim=1).values >= scores[:, chosen].max(dim=1).values - 1e-9).all())


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(4, 7), st.integers(1, 2))
def test_every_decision_between_retained_classes_stays(seed: int, classes: int, count: int) -> None:
    layer, z = head(seed, classes), features(seed)
    chosen = np.random.default_rng(seed).permutation(classes)[:count].tolist()
    kept = [label for label in range(classes) if label not in chosen]
    model = forget(layer, chosen, direction="decisions", forgotten_logit="keep")
    before, after = layer(z)[:, kept].detach(), model(z)[:, kept].detach()
    # All retained scores of an image shift alike.
    torch.testing.assert_close(after - after[:, :1], before - before[:, :1], rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(moved(model, moved(model, z)), moved(model, z), rtol=1e-6, atol=1e-7)
    # No shorter way: a part outside the span of the rows would change no score.
    centered = (layer.weight - layer.weight.mean(dim=0)).detach().numpy()
    outside = np.eye(9) - np.linalg.pinv(centered) @ centered
    np.testing.assert_allclose((moved(model, z) - z).numpy() @ outside, 0, atol=1e-7)


@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_the_move_is_the_smallest_there_is(seed: int) -> None:
    layer, z = head(seed), features(seed, count=4)
    after = moved(forget(layer, [2], direction="scores"), z)
    W, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    row, level = W[2] - W.mean(axis=0), b[2] - b.mean()
    # The distance to a hyperplane, in closed form.
    distance = np.abs(z.numpy() @ row + level) / np.linalg.norm(row)
    np.testing.assert_allclose(torch.linalg.vector_norm(after - z, dim=1).numpy(), distance, atol=1e-9)


@KINDS
@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_what_changes_no_decision_changes_nothing(direction: Direction, seed: int) -> None:
    layer, z = head(seed), features(seed)
    rng = np.random.default_rng(seed + 2)
    added, shift, level = torch.tensor(rng.normal(size=9)), torch.tensor(rng.normal(size=9)), float(rng.normal())
    other = head(seed)
    with torch.no_grad():
        # One vector and one number for all classes, and a network whose features lie elsewhere.
        other.weight += added
        other.bias += level - other.weight @ shift
    before, after = (forget(model, [1, 3], direction=direction, forgotten_logit="keep") for model in (layer, other))
    torch.testing.assert_close(moved(before, z), moved(after, z + shift) - shift)
    assert torch.equal(before(z).argmax(dim=1), after(z + shift).argmax(dim=1))


def test_on_a_simplex_it_is_the_projection_of_the_paper() -> None:
    layer = nn.Linear(8, 5, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(2 * pour.simplex_etf(5, 8).double())
        layer.bias.fill_(0.7)
    z = features(0, width=8)
    printed, ours, exact = (
        forget(layer, [1], direction=direction, forgotten_logit="keep")
        for direction in ("weights", "scores", "decisions")
    )
    torch.testing.assert_close(ours(z), printed(z))
    torch.testing.assert_close(moved(exact, z), moved(printed, z))
    assert isinstance(find_head(ours).module.projector, Projector)


@KINDS
def test_a_later_request_gives_what_both_at_once_give(direction: Direction) -> None:
    layer, z = head(3), features(3)
    both = forget(layer, [0, 4], direction=direction)
    later = forget(forget(layer, [4], direction=direction), [0], direction=direction)
    torch.testing.assert_close(moved(later, z), moved(both, z))
    after_rows = forget(forget(layer, [4], forgotten_logit="keep"), [0], direction=direction, forgotten_logit="keep")
    scores = after_rows(z).detach()
    torch.testing.assert_close(scores[:, [0, 4]], scores.mean(dim=1, keepdim=True).expand(-1, 2))


@KINDS
@pytest.mark.parametrize("logit", ["keep", "mask", "zero"])
def test_it_folds_saves_and_loads(tmp_path: Path, logit: ForgottenLogit, direction: Direction) -> None:
    model, z = nn.Sequential(nn.Flatten(), head(5)).float(), features(5).float()
    forgotten = forget(model, [1], direction=direction, forgotten_logit=logit)
    torch.testing.assert_close(fold(forgotten)(z), forgotten(z), rtol=1e-5, atol=1e-4)
    assert fold(forgotten).state_dict().keys() == model.state_dict().keys()
    pour.save(forgotten, tmp_path / "m.safetensors")
    again = pour.load(tmp_path / "m.safetensors", nn.Sequential(nn.Flatten(), head(6)).float())
    assert torch.equal(again(z), forgotten(z))
    assert pour.history(again)[-1].options["direction"] == direction


@KINDS
def test_feature_maps_and_heads_without_bias(direction: Direction) -> None:
    model = ConvHead().double()
    images = torch.rand(2, 3, 16, 16, dtype=torch.float64)
    scores = forget(model, [1], direction=direction, forgotten_logit="keep")(images)
    torch.testing.assert_close(scores[:, 1], scores.mean(dim=1))
    plain = head(1, bias=False)
    forgotten = forget(plain, [2], direction=direction, forgotten_logit="keep")
    torch.testing.assert_close(fold(forgotten)(features(1)), forgotten(features(1)))


def test_the_distillation_takes_the_same_target(digits_original: nn.Module, digits_splits: pour.Splits) -> None:
    request = pour.ForgetRequest.of(digits_splits)
    options = {"direction": "scores", "augment": False, "batch_size": 32, "lr": 3e-5, "device": "cpu"}
    student = pour.unlearn(digits_original, request, method="pour-d", progress=False, **options)
    log = pour.history(student)[-1].losses
    assert log[-1] < 0.2 * log[0]


def test_dependent_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 4 classes"):
        forget(head(0, classes=6, width=3), [1], direction="decisions")
    twins = head(0)
    with torch.no_grad():
        twins.weight[0] = twins.weight[1]
    with pytest.raises(UsageError, match="rows are independent, but these are not"):
        forget(twins, [2], direction="decisions")
    with pytest.raises(UsageError, match="linearly independent"):
        Eraser.onto(torch.ones(2, 4), torch.zeros(2))
    with pytest.raises(UsageError, match="data= is only read"):
        forget(head(0), [1], direction="scores", data=[(torch.zeros(1, 9), torch.zeros(1))])
