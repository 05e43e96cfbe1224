import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import orthogonal_procrustes

from pour.errors import UsageError
from pour.geometry import procrustes, procrustes_distance


def normal(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(seed, width):
    return torch.linalg.qr(normal(seed, width, width)).Q


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 8), scale=st.floats(1e-3, 1e3))
def test_a_shift_a_scale_and_a_rotation_are_undone_on_new_data(seed, width, scale):
    turn, shift = rotation(seed, width), normal(seed + 1, width)
    old, new = normal(seed + 2, 40, width), normal(seed + 3, 15, width)
    alignment = procrustes(old, scale * old @ turn + shift)
    assert torch.allclose(alignment(new), alignment.target(scale * new @ turn + shift), atol=1e-8)
    assert float(procrustes_distance(old, scale * old @ turn + shift)) < 1e-9


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 30), width=st.integers(1, 8))
def test_the_map_is_scipys_and_is_the_best(seed, n, width):
    x, y = normal(seed, n, width), normal(seed + 1, n, width)
    alignment = procrustes(x, y)
    a, b = ((rows - rows.mean(dim=0)).numpy() for rows in (x, y))
    a, b = (rows / np.sqrt((rows**2).sum(axis=1).mean()) for rows in (a, b))
    expected, _ = orthogonal_procrustes(a, b)
    np.testing.assert_allclose(alignment(x).numpy(), a @ expected, atol=1e-8)
    distance = float(procrustes_distance(x, y))
    assert distance == pytest.approx(np.sqrt(((a @ expected - b) ** 2).sum(axis=1).mean()), abs=1e-9)
    assert distance <= math.sqrt(2) + 1e-9
    turned = a @ rotation(seed + 2, width).numpy()
    assert distance <= np.sqrt(((turned - b) ** 2).sum(axis=1).mean()) + 1e-9
    assert distance == pytest.approx(float(procrustes_distance(y, x)), abs=1e-9)
    mapped = alignment.rotation
    assert torch.allclose(mapped @ mapped.T, torch.eye(width).double(), atol=1e-10)


@pytest.mark.parametrize("widths", [(3, 7), (7, 3)])
def test_the_narrower_features_are_padded(widths):
    first, second = widths
    narrow = normal(0, 50, min(widths))
    wide = narrow @ rotation(1, 7)[: min(widths)]
    x, y = (narrow, wide) if first < second else (wide, narrow)
    alignment = procrustes(x, y)
    assert alignment(x).shape == alignment.target(y).shape == (50, 7)
    assert float(procrustes_distance(x, y)) < 1e-9


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_aligned_in_float64(dtype):
    x, y = normal(0, 30, 4).to(dtype), normal(1, 30, 4).to(dtype)
    assert procrustes(x, y)(x).dtype == torch.float64
    assert float(procrustes_distance(x, y)) == pytest.approx(float(procrustes_distance(x.double(), y.double())))


def test_bad_input_is_refused():
    x, y = normal(0, 6, 3), normal(1, 6, 3)
    with pytest.raises(UsageError, match="6 rows and target 5"):
        procrustes(x, y[:5])
    with pytest.raises(UsageError, match="All rows of target are equal"):
        procrustes(x, torch.full((6, 3), 0.1))
    with pytest.raises(UsageError, match="source contains NaN"):
        procrustes(x / 0, y)
    with pytest.raises(UsageError, match="width 2, the alignment was fitted on 3"):
        procrustes(x, y)(x[:, :2])
    with pytest.raises(UsageError, match="target has width 4"):
        procrustes(x, y).target(normal(0, 2, 4))
