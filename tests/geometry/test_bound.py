import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optional_solver import marked, needs_pot
from scipy.spatial.distance import cdist

from pour.errors import UsageError
from pour.geometry import decompose_discrepancy, energy_distance, mmd, sliced_wasserstein, wasserstein

METRICS = marked(["mmd", "energy", "wasserstein-1", "sliced-wasserstein-1"])
# Squared distances carry rounding of 1e-15, so distances may be off by its root.
SLACK = 1e-7


def draw(seed, n, m, forgotten_p, forgotten_q, spread=1.0):
    """Two samples whose parts lie apart, with given numbers of rows predicted as forgotten."""
    generator = torch.Generator().manual_seed(seed)
    p, q = (torch.randn(rows, 3, generator=generator, dtype=torch.float64) for rows in (n, m))
    mask_p, mask_q = torch.arange(n) < forgotten_p, torch.arange(m) < forgotten_q
    p[mask_p] += spread * torch.randn(3, generator=generator, dtype=torch.float64)
    q[mask_q] += spread * torch.randn(3, generator=generator, dtype=torch.float64)
    order_p, order_q = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)
    return p[order_p], q[order_q], mask_p[order_p], mask_q[order_q]


@st.composite
def samples(draw_value):
    n, m = draw_value(st.integers(2, 25)), draw_value(st.integers(2, 25))
    forgotten_p, forgotten_q = draw_value(st.integers(1, n - 1)), draw_value(st.integers(1, m - 1))
    spread = draw_value(st.sampled_from([0.0, 1.0, 30.0]))
    return draw(draw_value(st.integers(0, 2**32)), n, m, forgotten_p, forgotten_q, spread)


@pytest.mark.parametrize("form", ["retrained", "unlearned"])
@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=40)
@given(drawn=samples())
def test_both_sides_hold_in_both_forms(metric, form, drawn):
    found = decompose_discrepancy(*drawn, metric=metric, form=form, num_slices=16)
    assert found.lower - SLACK <= found.total <= found.upper + SLACK


@pytest.mark.parametrize("form", ["retrained", "unlearned"])
@pytest.mark.parametrize("metric", METRICS)
@settings(deadline=None, max_examples=10)
@given(drawn=samples())
def test_the_terms_are_as_defined(metric, form, drawn):
    p, q, mask_p, mask_q = drawn
    bandwidth = 1.3
    distance = {
        "mmd": lambda x, y: float(mmd(x, y, bandwidth=bandwidth)),
        "energy": lambda x, y: float(energy_distance(x, y)),
        "wasserstein-1": lambda x, y: float(wasserstein(x, y)),
        "sliced-wasserstein-1": lambda x, y: float(sliced_wasserstein(x, y, num_slices=8)),
    }[metric]
    found = decompose_discrepancy(*drawn, metric=metric, form=form, bandwidth=bandwidth, num_slices=8)
    alpha, beta = float(mask_p.double().mean()), float(mask_q.double().mean())
    weight, whole, mask = (beta, p, mask_p) if form == "retrained" else (alpha, q, mask_q)
    gap = distance(whole[mask], whole[~mask])
    forgotten, retained = distance(p[mask_p], q[mask_q]), distance(p[~mask_p], q[~mask_q])
    expected = {
        "alpha": alpha,
        "beta": beta,
        "total": distance(p, q),
        "separation": abs(alpha - beta) * gap,
        "forgotten": weight * forgotten,
        "retained": (1 - weight) * retained,
        "separation_distance": gap,
        "forgotten_distance": forgotten,
        "retained_distance": retained,
        "upper": abs(alpha - beta) * gap + weight * forgotten + (1 - weight) * retained,
        "lower": abs(weight * forgotten - (1 - weight) * retained) - abs(alpha - beta) * gap,
    }
    values = found.to_dict()
    assert {name: values[name] for name in expected} == pytest.approx(expected, abs=SLACK)
    assert (values["metric"], values["form"]) == (metric, form)
    assert values["bandwidth"] == (bandwidth if metric == "mmd" else None)


@pytest.mark.parametrize("metric", METRICS)
def test_a_retrained_model_that_never_predicts_the_class_has_two_terms(metric):
    drawn = draw(0, 20, 15, 6, 0)
    found = decompose_discrepancy(*drawn, metric=metric)
    assert (found.beta, found.forgotten, found.forgotten_distance) == (0.0, 0.0, None)
    assert found.separation == pytest.approx(0.3 * found.separation_distance)
    assert found.retained == found.retained_distance > 0
    assert found.lower - SLACK <= found.total <= found.upper + SLACK
    with pytest.raises(UsageError, match=r"form 'unlearned' .* beta 0\); use form='retrained'"):
        decompose_discrepancy(*drawn, metric=metric, form="unlearned")


@pytest.mark.parametrize("form", ["retrained", "unlearned"])
def test_where_nobody_predicts_the_class_only_the_retained_term_is_left(form):
    found = decompose_discrepancy(*draw(0, 20, 15, 0, 0), form=form)
    assert found.total == found.upper == found.lower == found.retained
    assert found.separation_distance is None


@pytest.mark.parametrize("form", ["retrained", "unlearned"])
def test_where_everybody_predicts_the_class_only_the_forgotten_term_is_left(form):
    found = decompose_discrepancy(*draw(0, 20, 15, 20, 15), form=form)
    assert found.total == found.upper == found.lower == found.forgotten


def test_an_empty_part_with_weight_is_an_error_that_names_the_way_out():
    drawn = draw(0, 20, 15, 0, 5)
    with pytest.raises(UsageError, match="use form='unlearned'"):
        decompose_discrepancy(*drawn)
    found = decompose_discrepancy(*drawn, form="unlearned")
    assert found.lower - SLACK <= found.total <= found.upper + SLACK
    with pytest.raises(UsageError, match="predict retained classes too"):
        decompose_discrepancy(*draw(0, 20, 15, 20, 0))


@needs_pot
def test_mixing_the_two_forms_would_not_be_a_bound():
    """The retrained model's weight with its own separation, a reading that the paper's two versions invite."""
    p = torch.cat([torch.ones(5, 1), torch.zeros(5, 1)])
    q = torch.zeros(10, 1)
    mask_p, mask_q = p[:, 0] == 1, torch.arange(10) < 1
    right = decompose_discrepancy(p, q, mask_p, mask_q, metric="wasserstein-1")
    other = decompose_discrepancy(p, q, mask_p, mask_q, metric="wasserstein-1", form="unlearned")
    mixed = abs(right.alpha - right.beta) * other.separation_distance + right.forgotten + right.retained
    assert mixed < right.total - 0.3
    assert right.total <= right.upper
    assert other.total <= other.upper


def test_all_terms_share_the_bandwidth_of_the_whole():
    p, q, mask_p, mask_q = draw(1, 30, 30, 10, 10, spread=30.0)
    found = decompose_discrepancy(p, q, mask_p, mask_q)
    pooled = torch.cat([p, q])
    distances = cdist(pooled, pooled)[np.triu_indices(60, 1)]
    assert found.bandwidth == pytest.approx(np.median(distances), rel=0.02)
    assert found.forgotten_distance == pytest.approx(float(mmd(p[mask_p], q[mask_q], bandwidth=found.bandwidth)))


def test_slices_come_from_the_generator():
    drawn = draw(1, 30, 30, 10, 10)
    first, second, third = (
        decompose_discrepancy(
            *drawn, metric="sliced-wasserstein-1", num_slices=4, generator=torch.Generator().manual_seed(seed)
        )
        for seed in (0, 0, 1)
    )
    assert first == second != third


def test_bad_input_is_refused():
    p, q, mask_p, mask_q = draw(0, 8, 7, 3, 2)
    with pytest.raises(UsageError, match="wasserstein-2"):
        decompose_discrepancy(p, q, mask_p, mask_q, metric="wasserstein-2")
    with pytest.raises(UsageError, match="form is 'both'"):
        decompose_discrepancy(p, q, mask_p, mask_q, form="both")
    with pytest.raises(UsageError, match=r"unlearned_forgotten is torch\.int64"):
        decompose_discrepancy(p, q, mask_p.long(), mask_q)
    with pytest.raises(UsageError, match=r"retrained_forgotten .* expected booleans of shape \(7,\)"):
        decompose_discrepancy(p, q, mask_p, mask_p)
    with pytest.raises(UsageError, match="widths 3 and 2"):
        decompose_discrepancy(p, q[:, :2], mask_p, mask_q)
