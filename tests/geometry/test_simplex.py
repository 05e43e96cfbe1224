import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pour.errors import UsageError
from pour.geometry import simplex_etf


@settings(deadline=None, max_examples=40)
@given(classes=st.integers(2, 40), extra=st.integers(0, 30), seed=st.none() | st.integers(0, 2**32))
def test_rows_are_unit_equiangular_and_sum_to_zero(classes, extra, seed):
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    rows = simplex_etf(classes, classes - 1 + extra, dtype=torch.float64, generator=generator).numpy()
    expected = np.full((classes, classes), -1 / (classes - 1))
    np.fill_diagonal(expected, 1)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-13)
    np.testing.assert_allclose(rows.sum(axis=0), 0, atol=1e-13)


def test_without_a_generator_it_is_always_the_same_and_with_one_it_is_rotated():
    assert torch.equal(simplex_etf(5, 9), simplex_etf(5, 9))
    first, second = (simplex_etf(5, 9, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert not torch.allclose(first, second)
    assert torch.equal(first, simplex_etf(5, 9, generator=torch.Generator().manual_seed(0)))


def test_the_random_rotation_favours_no_direction():
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([simplex_etf(3, 4, dtype=torch.float64, generator=generator)[0] for _ in range(4000)])
    assert draws.mean(dim=0).abs().max() < 0.03
    assert torch.allclose(draws.T @ draws / 4000, torch.eye(4).double() / 4, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_it_comes_in_the_dtype_asked_for(dtype):
    rows = simplex_etf(10, 64, dtype=dtype)
    assert rows.dtype == dtype
    assert rows.shape == (10, 64)
    assert torch.allclose(rows.double().norm(dim=1), torch.ones(10).double(), atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [((1, 5), {}, "at least 2"), ((10, 8), {}, "at least 9"), ((3, 3), {"dtype": torch.int64}, "floating-point")],
)
def test_an_impossible_simplex_is_refused(arguments, options, message):
    with pytest.raises(UsageError, match=message):
        simplex_etf(*arguments, **options)
