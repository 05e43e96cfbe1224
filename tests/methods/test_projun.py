from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_requests import FORGET, RETAIN, tiny_net, unlearn
from torch import nn

from pour.errors import UsageError
from pour.methods.projun import _patches, scaled_importance
from pour.unlearning import make_method


def _importance(rows: np.ndarray, alpha: float) -> np.ndarray:
    """The published form: singular vectors of the columns, energy shares, scaled."""
    vectors, values, _ = np.linalg.svd(rows.T, full_matrices=True)
    energy = np.zeros(len(vectors))
    energy[: len(values)] = values**2 / (values**2).sum()
    return np.asarray(vectors @ np.diag(alpha * energy / ((alpha - 1) * energy + 1)) @ vectors.T)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.integers(1, 30), st.integers(1, 12), st.sampled_from([1.0, 3.0, 100.0, 1000.0]))
def test_one_solve_gives_the_scaled_importance(seed: int, count: int, width: int, alpha: float) -> None:
    rows = np.random.default_rng(seed).normal(size=(count, width))
    got = scaled_importance(torch.tensor(rows.T @ rows), alpha).numpy()
    np.testing.assert_allclose(got, _importance(rows, alpha), atol=1e-9)


def test_patches_are_what_the_kernel_sees() -> None:
    torch.manual_seed(0)
    maps = torch.randn(2, 4, 6, 6)
    for options in ({}, {"padding": 1}, {"stride": 2, "padding": 1}, {"groups": 2}, {"dilation": 2, "padding": "same"}):
        layer = nn.Conv2d(4, 6, 3, bias=False, **options)  # type: ignore[arg-type]
        rows = _patches(layer, maps, torch.Generator())
        weight = layer.weight.view(layer.groups, 6 // layer.groups, -1)
        out = (rows @ weight.mT).permute(1, 0, 2).reshape(2, -1, 6).mT
        torch.testing.assert_close(out, layer(maps).flatten(2))


def test_a_wide_map_gives_one_window_for_the_batch() -> None:
    layer = nn.Conv2d(1, 1, 3, padding=1)
    maps = torch.arange(400.0).view(1, 1, 20, 20).repeat(2, 1, 1, 1)
    rows = _patches(layer, maps, torch.Generator().manual_seed(0))
    # Nine by nine pixels hold seven by seven kernels, the same ones in both images.
    assert rows.shape == (1, 2 * 49, 9)
    torch.testing.assert_close(rows[0, :49], rows[0, 49:])


def test_every_layer_is_edited_as_published() -> None:
    model = tiny_net()
    result = unlearn(model, "projun", alpha_retain=10.0, alpha_forget=5.0)
    sides = []
    for batches in (FORGET, RETAIN):
        images = torch.cat([images for images, _ in batches])
        patches = nn.functional.unfold(images, 3).permute(0, 2, 1).reshape(-1, 9)
        with torch.no_grad():
            features = model[:-1](images)
        sides.append((patches.double().numpy(), features.double().numpy()))
    for layer, forget, retain in zip((0, 5), *sides, strict=True):
        m_f, m_r = _importance(forget, 5.0), _importance(retain, 10.0)
        q = np.eye(len(m_f)) - (m_f - m_f @ m_r)
        expected = model[layer].weight.detach().double().flatten(1).numpy() @ q.T
        np.testing.assert_allclose(result[layer].weight.detach().flatten(1).numpy(), expected, atol=1e-5)
        torch.testing.assert_close(result[layer].bias, model[layer].bias)
    for key in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(getattr(result[1], key), getattr(model[1], key))


def test_bad_options_are_told() -> None:
    with pytest.raises(UsageError, match=r"alpha_forget must be above 0 and at most 1e\+12, but is 0"):
        make_method("projun", alpha_forget=0)
    with pytest.raises(UsageError, match="images must be at least 1, but is 0"):
        make_method("projun", images=0)
