import math
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_solver import marked, needs_pot
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist
from scipy.stats import energy_distance as scipy_energy
from scipy.stats import wasserstein_distance as scipy_wasserstein
from torch.utils._python_dispatch import TorchDispatchMode

from pour.errors import UsageError
from pour.geometry import (
    discrepancy,
    energy_distance,
    mean_over_pairs,
    median_bandwidth,
    mmd,
    random_slices,
    rbf_kernel,
    sliced_wasserstein,
    wasserstein,
)

DISTANCES = {
    "mmd": mmd,
    "energy": energy_distance,
    "sliced-1": lambda x, y: sliced_wasserstein(x, y, num_slices=16),
    "sliced-2": lambda x, y: sliced_wasserstein(x, y, order=2, num_slices=16),
    "wasserstein-1": wasserstein,
    "wasserstein-2": lambda x, y: wasserstein(x, y, order=2),
}
sizes = st.integers(1, 30)
seeds = st.integers(0, 2**32)


class LargestTensor(TorchDispatchMode):
    """Remember the most bytes that any operation returned."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, torch.Tensor):
                self.bytes = max(self.bytes, value.numel() * value.element_size())
        return result


def draw(seed, n, m, width=3, shift=0.5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=generator, dtype=torch.float64)
    y = 1.5 * torch.randn(m, width, generator=generator, dtype=torch.float64) + shift
    return x.to(dtype), y.to(dtype)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=sizes, m=sizes, offset=st.sampled_from([0.0, 1e4]))
def test_mmd_and_energy_agree_with_all_pairs_at_once(seed, n, m, offset):
    x, y = (sample + offset for sample in draw(seed, n, m))
    between, within_x, within_y = cdist(x, y), cdist(x, x), cdist(y, y)
    kernel = [np.exp(-(distances**2) / (2 * 0.8**2)).mean() for distances in (within_x, within_y, between)]
    squared = kernel[0] + kernel[1] - 2 * kernel[2]
    assert float(mmd(x, y, bandwidth=0.8)) ** 2 == pytest.approx(squared, abs=1e-9)
    squared = 2 * between.mean() - within_x.mean() - within_y.mean()
    assert float(energy_distance(x, y)) ** 2 == pytest.approx(squared, abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=sizes, m=sizes)
def test_one_dimension_agrees_with_scipy(seed, n, m):
    x, y = draw(seed, n, m, width=1)
    one = torch.ones(1, 1)
    assert float(energy_distance(x, y)) == pytest.approx(scipy_energy(x[:, 0], y[:, 0]), abs=1e-7)
    expected = scipy_wasserstein(x[:, 0], y[:, 0])
    assert float(sliced_wasserstein(x, y, slices=one)) == pytest.approx(expected, abs=1e-10)
    assert float(sliced_wasserstein(x, y, slices=one, order=2)) == pytest.approx(second_order(x, y), abs=1e-10)


def second_order(x, y):
    """Repeated rows make samples of one size, whose optimal plan is to match sorted rows."""
    size = math.lcm(len(x), len(y))
    a, b = (np.sort(np.repeat(sample[:, 0].numpy(), size // len(sample))) for sample in (x, y))
    return np.sqrt(((a - b) ** 2).mean())


@needs_pot
@settings(deadline=None, max_examples=40)
@given(seed=seeds, n=sizes, m=sizes)
def test_exact_wasserstein_of_one_dimension_agrees_with_scipy(seed, n, m):
    x, y = draw(seed, n, m, width=1)
    assert float(wasserstein(x, y)) == pytest.approx(scipy_wasserstein(x[:, 0], y[:, 0]), abs=1e-8)
    assert float(wasserstein(x, y, order=2)) == pytest.approx(second_order(x, y), abs=1e-7)


@needs_pot
@settings(deadline=None, max_examples=20)
@given(seed=seeds, n=sizes)
def test_exact_wasserstein_agrees_with_an_assignment(seed, n):
    x, y = draw(seed, n, n)
    for order in (1, 2):
        costs = cdist(x, y) ** order
        expected = costs[linear_sum_assignment(costs)].mean() ** (1 / order)
        assert float(wasserstein(x, y, order=order)) == pytest.approx(expected, abs=1e-8)


@settings(deadline=None, max_examples=20)
@given(seed=seeds, n=sizes, m=sizes)
def test_slices_are_averaged(seed, n, m):
    x, y = draw(seed, n, m)
    slices = random_slices(5, 3, torch.Generator().manual_seed(seed))
    expected = np.mean([scipy_wasserstein(x @ axis, y @ axis) for axis in slices])
    assert float(sliced_wasserstein(x, y, slices=slices)) == pytest.approx(expected, abs=1e-10)
    generator = torch.Generator().manual_seed(seed)
    assert float(sliced_wasserstein(x, y, num_slices=5, generator=generator)) == pytest.approx(expected, abs=1e-10)


@needs_pot
@settings(deadline=None, max_examples=20)
@given(seed=seeds, n=sizes, m=sizes)
def test_a_sliced_distance_is_at_most_the_exact_one(seed, n, m):
    x, y = draw(seed, n, m)
    assert float(sliced_wasserstein(x, y)) <= float(wasserstein(x, y)) + 1e-9


@pytest.mark.parametrize("name", marked(DISTANCES))
@settings(deadline=None, max_examples=10)
@given(seed=seeds, n=st.integers(2, 20), m=st.integers(2, 20))
def test_each_is_a_distance(name, seed, n, m):
    distance = DISTANCES[name]
    x, y = draw(seed, n, m)
    assert float(distance(x, y)) > 0
    assert float(distance(x, y)) == pytest.approx(float(distance(y, x)), abs=1e-7)
    assert float(distance(x, x)) == pytest.approx(0, abs=1e-7)
    # V-statistics see distributions, not samples: saying everything twice changes nothing.
    if name != "mmd":
        assert float(distance(torch.cat([x, x]), y)) == pytest.approx(float(distance(x, y)), abs=1e-7)
    shift = torch.full((3,), 100.0)
    assert float(distance(x + shift, y + shift)) == pytest.approx(float(distance(x, y)), abs=1e-6)


@pytest.mark.parametrize("name", marked(DISTANCES))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_is_measured_in_float64(name, dtype):
    x, y = draw(0, 30, 20, dtype=dtype)
    found = DISTANCES[name](x.requires_grad_(), y)
    assert found.dtype == torch.float64
    assert not found.requires_grad
    assert float(found) == pytest.approx(float(DISTANCES[name](x.detach().double(), y.double())), rel=1e-12)


def test_equal_points_are_at_no_distance_in_spite_of_rounding():
    x = torch.randn(40, 512, generator=torch.Generator().manual_seed(0)) * 100
    assert float(energy_distance(x, x.flip(0))) < 1e-7
    assert float(mmd(x, x.flip(0))) < 1e-7


@settings(deadline=None, max_examples=20)
@given(seed=seeds, sizes=st.lists(st.integers(0, 12), min_size=2, max_size=4))
def test_means_between_groups_do_not_depend_on_the_block_size(seed, sizes):
    groups = list(draw(seed, sum(sizes), 1)[0].split(sizes))
    whole = mean_over_pairs(groups, torch.sqrt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(discrepancy, "_PAIRS_AT_ONCE", 7)
        with LargestTensor() as largest:
            blocks = mean_over_pairs(groups, torch.sqrt)
    assert torch.allclose(whole, blocks, atol=1e-12)
    assert largest.bytes <= 8 * 3 * max(7, max(sizes))
    for i, first in enumerate(groups):
        for j, second in enumerate(groups):
            expected = cdist(first, second).mean() if len(first) and len(second) else 0
            assert float(whole[i, j]) == pytest.approx(expected, abs=1e-7)


def test_the_bandwidth_is_the_median_distance():
    x, y = draw(0, 20, 15)
    pooled = torch.cat([x, y])
    distances = np.sort(cdist(pooled, pooled)[np.triu_indices(35, 1)])
    assert distances[len(distances) // 2 - 1] <= median_bandwidth(x, y) + 1e-9
    assert median_bandwidth(x, y) <= distances[len(distances) // 2] + 1e-9
    assert float(mmd(x, y)) == pytest.approx(float(mmd(x, y, bandwidth=median_bandwidth(x, y))))


def test_the_bandwidth_does_not_depend_on_where_the_samples_lie():
    sample = torch.randn(40, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert median_bandwidth(sample + 1e8) == pytest.approx(median_bandwidth(sample), rel=1e-6)


def test_the_bandwidth_of_collapsed_features_is_positive():
    collapsed = torch.cat([torch.zeros(30, 2), torch.tensor([[3.0, 4.0]])])
    assert median_bandwidth(collapsed) == pytest.approx(5)
    assert median_bandwidth(torch.ones(4, 2)) == 1
    assert float(mmd(torch.ones(4, 2), torch.ones(3, 2))) == 0


def test_many_rows_are_thinned_for_the_bandwidth_alone():
    x, y = draw(0, 2500, 2500)
    distances = cdist(torch.cat([x, y])[::10], torch.cat([x, y])[::10])[np.triu_indices(500, 1)]
    assert median_bandwidth(x, y) == pytest.approx(np.median(distances), rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("distance", "width"), [(mmd, 16), (energy_distance, 16), (sliced_wasserstein, 512)])
def test_ten_thousand_rows_a_side_never_hold_all_pairs(distance, width):
    x, y = draw(0, 10_000, 10_000, width=width, dtype=torch.float32)
    with LargestTensor() as largest:
        assert float(distance(x, y)) > 0
    assert largest.bytes < 256 * 2**20


def test_bad_input_is_refused():
    x, y = draw(0, 5, 4)
    with pytest.raises(UsageError, match="widths 3 and 2"):
        mmd(x, y[:, :2])
    with pytest.raises(UsageError, match="y contains NaN"):
        energy_distance(x, y / 0)
    with pytest.raises(UsageError, match="x has shape"):
        mmd(x[0], y)
    with pytest.raises(UsageError, match="at least one row"):
        mmd(x[:0], y)
    with pytest.raises(UsageError, match=r"torch\.int64"):
        mmd(x.long(), y)
    with pytest.raises(UsageError, match="bandwidth is 0"):
        mmd(x, y, bandwidth=0)
    with pytest.raises(UsageError, match="positive"):
        rbf_kernel(math.nan)
    with pytest.raises(UsageError, match="order is 3"):
        sliced_wasserstein(x, y, order=3)
    with pytest.raises(UsageError, match="order is 0"):
        wasserstein(x, y, order=0)
    with pytest.raises(UsageError, match="slices have width 2"):
        sliced_wasserstein(x, y, slices=torch.ones(1, 2))
    with pytest.raises(UsageError, match="at least one"):
        sliced_wasserstein(x, y, num_slices=0)


def test_without_pot_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(UsageError, match=r"pour-unlearning\[transport\]"):
        wasserstein(*draw(0, 3, 3))
