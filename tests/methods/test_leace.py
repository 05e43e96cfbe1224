from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from small_requests import FORGET, FORGOTTEN, RETAIN, tiny_net, unlearn
from torch import nn

import pour
from pour.geometry.leace import LeaceFitter
from pour.models.tap import extract_features
from pour.unlearning import ForgetRequest

if TYPE_CHECKING:
    from pathlib import Path

ALL = [*FORGET, *RETAIN]


def _seen(model: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """What the head sees of all fitted images, and which are of the forgotten class."""
    seen = extract_features(model, ALL)
    return seen.features.double().numpy(), (seen.labels == FORGOTTEN).double().numpy()


@pytest.mark.parametrize(("method", "options"), [("leace", {"shrinkage": False}), ("leace", {}), ("leace-orth", {})])
def test_no_linear_signal_is_left_in_the_fitted_features(method: str, options: dict[str, bool]) -> None:
    model = tiny_net()
    x, y = _seen(model)
    before = np.linalg.lstsq(x - x.mean(0), y - y.mean(), rcond=None)[0]
    assert np.abs(before).max() > 0.1
    x, y = _seen(unlearn(model, method, **options))
    scale = np.abs(x - x.mean(0)).max()
    covariance = (x - x.mean(0)).T @ (y - y.mean()) / len(x)
    assert np.abs(covariance).max() < 1e-6 * scale
    # A classifier that may do anything linear does nothing.
    fitted = LogisticRegression(C=1.0, tol=1e-10, max_iter=5000).fit((x - x.mean(0)) / scale, y)
    assert np.abs(fitted.coef_).max() < 1e-4


def test_the_mean_is_kept_and_the_encoder_too() -> None:
    model = tiny_net()
    for method in ("leace", "leace-orth"):
        result = unlearn(model, method)
        np.testing.assert_allclose(_seen(result)[0].mean(0), _seen(model)[0].mean(0), atol=1e-5)
        raw = extract_features(result, ALL).raw
        torch.testing.assert_close(raw, extract_features(model, ALL).features)


@pytest.mark.parametrize("shrinkage", [False, True])
def test_the_covariance_is_shrunk_if_the_option_is_set(shrinkage: bool) -> None:
    model = tiny_net()
    seen = extract_features(model, ALL)
    fitter = LeaceFitter(seen.features.shape[1], 1)
    fitter.update(seen.features, seen.labels[:, None] == FORGOTTEN)
    with_option, without = (fitter.eraser(shrinkage=value)(seen.features) for value in (shrinkage, not shrinkage))
    erased = extract_features(unlearn(model, "leace", shrinkage=shrinkage), ALL).features
    scale = seen.features.std()
    torch.testing.assert_close(erased / scale, with_option / scale, rtol=1e-4, atol=1e-4)
    assert (erased - without).abs().max() > 1e-2 * scale


def test_leace_moves_less_than_its_orthogonal_form() -> None:
    """Of all affine maps that erase, LEACE changes features least, in the mean squared distance."""
    model = tiny_net()
    x, _ = _seen(model)
    moved = {
        method: np.square(_seen(unlearn(model, method, **options))[0] - x).sum()
        for method, options in {"leace": {"shrinkage": False}, "leace-orth": {}}.items()
    }
    assert moved["leace"] < moved["leace-orth"]


def test_several_classes_are_erased_together() -> None:
    labels = (0, FORGOTTEN)
    images = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 4
    images = images + 0.3 * y[:, None, None, None] * images.flip(2)
    gone = torch.isin(y, torch.tensor(labels))
    request = ForgetRequest(classes=list(labels), forget=[(images[gone], y[gone])], retain=[(images[~gone], y[~gone])])
    result = unlearn(tiny_net(), "leace", request, shrinkage=False)
    seen = extract_features(result, [(images, y)])
    x = seen.features.double().numpy()
    for label in labels:
        indicator = (y == label).double().numpy()
        assert np.abs((x - x.mean(0)).T @ (indicator - indicator.mean()) / len(x)).max() < 1e-6


def test_the_eraser_is_saved_folded_and_followed(tmp_path: Path) -> None:
    model, images = tiny_net(), torch.rand(9, 1, 6, 6)
    erased = unlearn(model, "leace")
    loaded = pour.load(pour.save(erased, tmp_path / "erased.safetensors"), model)
    torch.testing.assert_close(loaded(images), erased(images))
    plain = pour.fold(erased)
    assert plain.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(plain(images), erased(images))
    # A later request of another kind comes on top.
    both = pour.forget(loaded, classes=[0], direction="weights", forgotten_logit="keep")
    rows = nn.functional.normalize(model[-1].weight.detach()[0], dim=0)
    seen, after = extract_features(erased, ALL).features, extract_features(both, ALL).features
    torch.testing.assert_close(after, seen - (seen @ rows)[:, None] * rows, rtol=1e-4, atol=1e-5)
    assert pour.history(both)[-1].digest_after == pour.models.state.digest(both.state_dict())
    without_row = pour.forget(model, classes=[0], direction="weights", forgotten_logit="keep")
    last = unlearn(without_row, "leace", shrinkage=False)
    features = extract_features(last, ALL).features
    torch.testing.assert_close(features @ rows, torch.zeros(len(features)), rtol=0, atol=1e-4)
    assert pour.fold(last)(images).isfinite().all()


def test_another_treatment_of_scores_is_refused() -> None:
    masked = pour.forget(tiny_net(), classes=[0])
    with pytest.raises(pour.UsageError, match=r"already forgot classes with forgotten_logit='mask'; pass the same"):
        unlearn(masked, "leace")
    assert unlearn(masked, "leace", forgotten_logit="mask")(torch.rand(2, 1, 6, 6)).shape == (2, 4)
