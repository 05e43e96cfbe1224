"""The choice of the direction: decisions where it is well conditioned, else scores, and what later requests see."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import pour
from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.models import ProjectedHead, find_head, fold, forget, masked_score, zero_shot_classifier
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.projecting.direction import MOST_STRETCH, choose_direction, head_removal, stretch

if TYPE_CHECKING:
    from pour.models.projecting.forget import Direction

SETTING_SCORES = ("auto", "decisions", "scores")


def linear(classes: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> nn.Linear:
    """A head of independent normal rows with a common part, and unequal biases."""
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(width, classes)
    with torch.no_grad():
        layer.weight.normal_(generator=generator).add_(torch.randn(width, generator=generator) / 2)
        layer.bias.normal_(generator=generator)
    return layer.to(dtype)


def features(count: int, width: int, seed: int = 1) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


class ConvScores(nn.Module):
    """A 1x1 convolution as the head, on maps of one cell."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.score = nn.Conv2d(layer.in_features, layer.out_features, 1, dtype=layer.weight.dtype)
        with torch.no_grad():
            self.score.weight.copy_(layer.weight[:, :, None, None])
            self.score.bias.copy_(layer.bias)

    def forward(self, features: Tensor) -> Tensor:
        return self.score(features[:, :, None, None]).flatten(1)


def choice(layer: nn.Linear, classes: tuple[int, ...] = (0,)) -> str:
    return choose_direction(find_head(layer), classes)


def recorded(model: nn.Module) -> str:
    return next(record for record in reversed(pour.history(model)) if record.method == "pour-p").options["direction"]


def agreement(before: Tensor, after: Tensor, forgotten: list[int]) -> float:
    """The share of decisions between the classes that are not in ``forgotten`` which stay as they were."""
    kept = [label for label in range(before.shape[1]) if label not in forgotten]
    return (before[:, kept].argmax(dim=1) == after[:, kept].argmax(dim=1)).double().mean().item()


@pytest.mark.parametrize(("classes", "width"), [(100, 100), (100, 99), (1000, 1024)])
@pytest.mark.parametrize("forgotten", [(0,), (0, 3)])
def test_wide_heads_of_random_rows_take_scores(classes: int, width: int, forgotten: tuple[int, ...]) -> None:
    layer = linear(classes, width)
    assert MOST_STRETCH < 5 < stretch(find_head(layer), forgotten) < 200
    assert choice(layer, forgotten) == "scores"
    assert recorded(forget(layer, list(forgotten))) == "scores"


@pytest.mark.parametrize("forgotten", [(0,), (0, 3), (9, 1, 4)])
def test_narrow_heads_take_decisions(forgotten: tuple[int, ...]) -> None:
    layer = linear(10, 64)
    assert 1 < stretch(find_head(layer), forgotten) < MOST_STRETCH
    assert choice(layer, forgotten) == "decisions"
    model = forget(layer, list(forgotten))
    assert recorded(model) == recorded(fold(model)) == "decisions"


@pytest.mark.parametrize("classes", [3, 10, 100])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_a_simplex_takes_decisions(classes: int, shift: float) -> None:
    layer = nn.Linear(classes + 3, classes)
    with torch.no_grad():
        layer.weight.copy_(3 * pour.simplex_etf(classes, classes + 3) + shift)
    assert stretch(find_head(layer), (1,)) == pytest.approx(1, abs=1e-5)
    assert choice(layer, (1,)) == "decisions"


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(4, 7), st.integers(1, 2))
def test_stretch_is_the_largest_ratio_of_the_moves(seed: int, classes: int, count: int) -> None:
    layer = linear(classes, 9, seed, torch.float64)
    head, chosen = find_head(layer), tuple(range(count))
    z = torch.randn(200, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    far, near = (
        torch.linalg.vector_norm(head_removal(head, chosen, direction)(z) - z, dim=1)
        for direction in ("decisions", "scores")
    )
    factor = stretch(head, chosen)
    ratios = far / near
    assert factor >= 1 - 1e-9
    assert ratios.max().item() <= factor * (1 + 1e-7)
    if count == 1:
        np.testing.assert_allclose(ratios, factor, rtol=1e-6)
    # An independent oracle: the spectral norm of the linear part, as a matrix.
    erase = head_removal(head, chosen, "decisions")
    linear_part = torch.eye(9, dtype=torch.float64) - (
        erase(torch.eye(9, dtype=torch.float64)) - erase(torch.zeros(9).double())
    )
    assert factor == pytest.approx(np.linalg.norm(linear_part.numpy(), 2), rel=1e-8)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 10_000), st.integers(4, 12), st.integers(2, 24), st.integers(1, 2), st.booleans())
def test_by_default_a_forgotten_class_never_wins(seed: int, classes: int, width: int, count: int, bias: bool) -> None:
    layer = linear(classes, width, seed, torch.float64)
    if not bias:
        layer.bias = None
    forgotten = list(range(min(count, width - 1)))
    z = 3 * torch.randn(50, width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    model = forget(layer, forgotten, forgotten_logit="keep")
    for result in (model, fold(model)):
        scores = result(z).detach()
        mean = scores.mean(dim=1, keepdim=True)
        size = layer(z).abs().max().item()
        assert (scores[:, forgotten] - mean).abs().max() < 1e-9 * size
        retained = scores[:, len(forgotten) :].max(dim=1).values
        assert bool((retained >= scores[:, forgotten].max(dim=1).values - 1e-9 * size).all())
    if recorded(model) == "decisions":
        assert agreement(layer(z), model(z), forgotten) == 1


def test_heads_without_decisions_take_scores_and_say_so_only_if_asked() -> None:
    wide = linear(8, 4)
    assert stretch(find_head(wide), (0,)) == math.inf
    assert recorded(forget(wide, [0])) == "scores"
    with pytest.raises(UsageError, match="at most 5 classes"):
        forget(wide, [0], direction="decisions")
    twins = linear(5, 9)
    with torch.no_grad():
        twins.weight[3] = twins.weight[4]
    assert stretch(find_head(twins), (0,)) == math.inf
    assert recorded(forget(twins, [0])) == "scores"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_rows_that_are_dependent_up_to_rounding_are_refused(dtype: torch.dtype) -> None:
    layer = linear(6, 32, dtype=torch.float64)
    with torch.no_grad():
        layer.weight[5] = 0.6 * layer.weight[3] + 0.4 * layer.weight[4]
    layer = layer.to(dtype)
    with pytest.raises(UsageError, match="rows are independent, but these are not"):
        forget(layer, [0], direction="decisions")
    assert recorded(forget(layer, [0])) == "scores"


def test_an_ill_conditioned_head_has_decisions_if_asked() -> None:
    layer = linear(100, 99)
    z = features(300, 99)
    model = forget(layer, [0], direction="decisions", forgotten_logit="keep")
    assert recorded(model) == "decisions"
    assert agreement(layer(z), model(z), [0]) == 1


def test_two_forgotten_classes_with_the_same_row() -> None:
    layer = linear(6, 9)
    with torch.no_grad():
        layer.weight[1] = layer.weight[0]
    with pytest.raises(UsageError, match=r'classes 0, 1 are linearly dependent.*direction="centered-weights"'):
        forget(layer, [0, 1])
    with torch.no_grad():
        layer.bias.zero_()
    assert recorded(forget(layer, [0, 1])) == "scores", "equal biases leave one condition for both"


@pytest.mark.parametrize("second", SETTING_SCORES)
@pytest.mark.parametrize("first", SETTING_SCORES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_request_after_folding_with_the_score_kept(
    kind: str, first: Direction, second: Direction, dtype: torch.dtype
) -> None:
    """The row of the first class is the mean of the others up to rounding, and must not count as a direction."""
    layer = linear(10, 64, dtype=dtype)
    model = layer if kind == "linear" else ConvScores(layer)
    z = features(200, 64).to(dtype)
    tolerance = 2e-5 if dtype == torch.float32 else 0.3
    once = fold(forget(model, [0], direction=first, forgotten_logit="keep"))
    twice = forget(once, [3, 4], direction=second, forgotten_logit="keep")
    with torch.no_grad():
        before, middle = model(z).float(), once(z).float()
    for result in (twice, fold(twice)):
        with torch.no_grad():
            after = result(z).float()
        assert after.abs().max() < 1.5 * before.abs().max()
        assert (after[:, [0, 3, 4]] - after.mean(dim=1, keepdim=True)).abs().max() < tolerance
        assert not torch.isin(after.argmax(dim=1), torch.tensor([0, 3, 4])).any()
        if second != "scores":
            assert agreement(middle, after, [0, 3, 4]) >= (1 if dtype == torch.float32 else 0.97)
    assert recorded(twice) == ("scores" if second == "scores" else "decisions")
    with pytest.raises(UsageError, match=r"row for class 0 is the mean of the rows.*earlier request forgot the class"):
        forget(twice if kind == "conv" else once, [0], direction=second, forgotten_logit="keep")
    # One more round.
    thrice = fold(forget(fold(twice), [7], direction=second, forgotten_logit="keep"))
    with torch.no_grad():
        last = thrice(z).float()
    assert (last[:, [0, 3, 4, 7]] - last.mean(dim=1, keepdim=True)).abs().max() < tolerance


@pytest.mark.parametrize("second", SETTING_SCORES)
@pytest.mark.parametrize("first", SETTING_SCORES)
def test_a_request_on_a_projected_model_leaves_the_first_class_at_the_mean(first: Direction, second: Direction) -> None:
    layer, z = linear(10, 64), features(200, 64)
    once = forget(layer, [0], direction=first, forgotten_logit="keep")
    twice = forget(once, [3, 4], direction=second, forgotten_logit="keep")
    for result in (twice, fold(twice)):
        scores = result(z).detach()
        assert (scores[:, [0, 3, 4]] - scores.mean(dim=1, keepdim=True)).abs().max() < 1e-5
        if "scores" not in (first, second):
            assert agreement(layer(z), scores, [0, 3, 4]) == 1


@pytest.mark.parametrize("logit", ["mask", "zero"])
@pytest.mark.parametrize("second", SETTING_SCORES)
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_a_folded_class_without_a_row_has_no_part_in_the_mean(kind: str, logit: Any, second: Direction) -> None:
    layer, z = linear(10, 64), features(200, 64)
    model = layer if kind == "linear" else ConvScores(layer)
    twice = fold(forget(fold(forget(model, [0], forgotten_logit=logit)), [3], direction=second, forgotten_logit="keep"))
    with torch.no_grad():
        before, after = model(z), twice(z)
    live = after[:, 1:]
    assert (live[:, 2] - live.mean(dim=1)).abs().max() < 1e-5
    assert bool((after[:, 0] == (masked_score(torch.float32) if logit == "mask" else 0)).all())
    assert live.abs().max() < 1.5 * before.abs().max()
    if second != "scores":
        assert agreement(before, after, [0, 3]) == 1
    with pytest.raises(UsageError, match="row for class 0 is zero"):
        forget(twice, [0], direction=second, forgotten_logit="keep")


def test_a_class_of_fixed_score_is_one_of_the_live_classes_unless_it_was_forgotten() -> None:
    """The reference class of a logistic model has a zero row, and its decisions are kept like all others."""
    layer, z = linear(6, 32), features(200, 32)
    with torch.no_grad():
        layer.weight[5] = 0
    model = forget(layer, [0], forgotten_logit="keep")
    assert recorded(model) == "decisions"
    assert agreement(layer(z), model(z), [0]) == 1
    assert stretch(find_head(layer), (0,)) != pytest.approx(stretch(find_head(layer), (0,), earlier=(5, 99)))


def test_a_folded_simplex_forgets_again() -> None:
    """Centred rows leave a zero row at the mean, which rounding decides."""
    layer, z = nn.Linear(12, 8), features(100, 12)
    with torch.no_grad():
        layer.weight.copy_(3 * pour.simplex_etf(8, 12))
    once = fold(forget(layer, [2], forgotten_logit="keep"))
    twice = forget(once, [5], forgotten_logit="keep")
    assert recorded(twice) == "decisions"
    scores = twice(z).detach()
    assert agreement(layer(z), scores, [2, 5]) == 1
    assert (scores[:, [2, 5]] - scores.mean(dim=1, keepdim=True)).abs().max() < 1e-5


def test_zero_shot_classifiers_stay_foldable() -> None:
    torch.manual_seed(0)
    classifier = zero_shot_classifier(ImageTextEncoder(16, width=4, blocks=(1,)), torch.randn(4, 16))
    assert stretch(find_head(classifier), (1,)) < math.inf
    forgotten = forget(classifier, [1], forgotten_logit="keep").eval()
    assert recorded(forgotten) == "scores"
    images = torch.rand(4, 3, 8, 8)
    with torch.no_grad():
        scores, folded = forgotten(images), fold(forgotten).eval()(images)
    torch.testing.assert_close(folded, scores, rtol=1e-4, atol=1e-4)
    assert (scores[:, 1] - scores.mean(dim=1)).abs().max() < 1e-4


def test_the_method_takes_and_records_the_same_choice() -> None:
    for layer, expected in ((linear(10, 64), "decisions"), (linear(30, 30), "scores")):
        model = pour.unlearn(layer, pour.ForgetRequest(classes=[0]), method="pour-p", device="cpu", progress=False)
        assert recorded(model) == expected
        z = features(20, layer.in_features)
        assert torch.equal(model(z), forget(layer, [0])(z))


def test_the_papers_direction_is_there_if_asked() -> None:
    layer = linear(10, 64)
    model = forget(layer, [0], direction="weights", forgotten_logit="keep")
    assert recorded(model) == "weights"
    assert isinstance(model, ProjectedHead)
    assert not isinstance(model.projector, Eraser)
    torch.testing.assert_close(model(features(7, 64))[:, 0], layer.bias[0].expand(7), rtol=1e-4, atol=1e-5)
