"""POUR-P against the formulas of the paper, worked out by hand in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from small_requests import CLASSES, FORGOTTEN, tiny_net, unlearn
from torch import nn

import pour
from pour.errors import UsageError
from pour.unlearning import ForgetRequest, make_method

KEPT = [label for label in range(CLASSES) if label != FORGOTTEN]
ALSO = 0


def images() -> torch.Tensor:
    return torch.rand(50, 1, 6, 6, generator=torch.Generator().manual_seed(7))


def parts(model: nn.Module) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the features of the images, and the weight and bias of the head, in float64."""
    layer: Any = model[-1]  # type: ignore[index]
    with torch.no_grad():
        features = model[:-1](images())  # type: ignore[index]
    return tuple(np.asarray(tensor.detach().double()) for tensor in (features, layer.weight, layer.bias))  # type: ignore[return-value]


def scores(model: nn.Module, *classes: int, **options: Any) -> np.ndarray:
    result = unlearn(model, "pour-p", ForgetRequest(classes=classes or (FORGOTTEN,)), **options)
    return np.asarray(result(images()).detach().double())


@pytest.mark.parametrize("classes", [(FORGOTTEN,), (ALSO, FORGOTTEN)])
def test_the_weights_are_projected_out_as_in_the_paper(classes: tuple[int, ...]) -> None:
    model = tiny_net()
    features, weight, bias = parts(model)
    rows = weight[list(classes)]
    projector = np.eye(5) - rows.T @ np.linalg.solve(rows @ rows.T, rows)
    expected = features @ projector @ weight.T + bias
    found = scores(model, *classes, direction="weights", forgotten_logit="keep")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # The class keeps its bias alone.
    np.testing.assert_allclose(found[:, classes], np.broadcast_to(bias[list(classes)], (50, len(classes))), atol=1e-5)


@pytest.mark.parametrize(("logit", "expected"), [("zero", 0.0), ("mask", None)])
def test_the_score_of_the_class_itself(logit: str, expected: float | None) -> None:
    model = tiny_net()
    kept = scores(model, direction="weights", forgotten_logit="keep")
    found = scores(model, direction="weights", forgotten_logit=logit)
    np.testing.assert_allclose(found[:, KEPT], kept[:, KEPT], rtol=1e-6)
    if expected is None:
        assert found[:, FORGOTTEN].max() < -1e3
    else:
        assert (found[:, FORGOTTEN] == expected).all()


@pytest.mark.parametrize("direction", ["scores", "decisions"])
@pytest.mark.parametrize("classes", [(FORGOTTEN,), (ALSO, FORGOTTEN)])
def test_the_class_ends_at_the_mean_score(direction: str, classes: tuple[int, ...]) -> None:
    found = scores(tiny_net(), *classes, direction=direction, forgotten_logit="keep")
    mean = found.mean(axis=1)
    for label in classes:
        np.testing.assert_allclose(found[:, label], mean, rtol=1e-4, atol=1e-5)


def test_scores_moves_features_least_and_decisions_shifts_retained_scores_alike() -> None:
    model = tiny_net()
    features, weight, bias = parts(model)
    v, c = weight[FORGOTTEN] - weight.mean(axis=0), bias[FORGOTTEN] - bias.mean()
    moved = features - np.outer((features @ v + c) / (v @ v), v)
    np.testing.assert_allclose(
        scores(model, direction="scores", forgotten_logit="keep"), moved @ weight.T + bias, rtol=1e-4, atol=1e-5
    )
    change = scores(model, direction="decisions", forgotten_logit="keep") - (features @ weight.T + bias)
    np.testing.assert_allclose(change[:, KEPT], np.repeat(change[:, KEPT[:1]], len(KEPT), axis=1), rtol=1e-4, atol=1e-5)


def test_auto_takes_decisions_unless_it_moves_features_far() -> None:
    model = tiny_net()
    chosen = pour.history(unlearn(model, "pour-p", ForgetRequest(classes=[FORGOTTEN])))[-1].options["direction"]
    assert np.array_equal(scores(model), scores(model, direction=chosen))
    # Almost dependent rows: only a long way shifts all retained scores alike.
    skewed = tiny_net()
    layer: Any = skewed[-1]  # type: ignore[index]
    layer.weight.data[FORGOTTEN] = layer.weight.data[ALSO] + 1e-3 * layer.weight.data[FORGOTTEN]
    chosen = pour.history(unlearn(skewed, "pour-p", ForgetRequest(classes=[FORGOTTEN])))[-1].options["direction"]
    assert chosen == "scores"


def test_it_is_pour_forget_and_reads_no_images() -> None:
    model = tiny_net()
    result = unlearn(model, "pour-p", ForgetRequest(classes=[FORGOTTEN]))
    assert torch.equal(result(images()), pour.forget(model, classes=[FORGOTTEN])(images()))
    assert make_method("pour-p").needs == ()
    entry = pour.history(result)[-1]
    assert (entry.method, entry.steps) == ("pour-p", 0)


def test_an_unknown_direction_is_told() -> None:
    with pytest.raises(UsageError, match=r"direction must be auto, .* but is 'sideways'"):
        make_method("pour-p", direction="sideways")
