import numpy as np
import pytest
import torch

from pour.auditing.measurement import Reading, hull
from pour.auditing.similarity import cka_reading, cka_standard_error, rus_reading
from pour.auditing.verdict import judge
from pour.errors import PourError
from pour.metrics import linear_cka, rus


def related(n, dx, dy, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dx, generator=g) * torch.logspace(0, -1, dx) + 3
    y = x @ torch.randn(dx, dy, generator=g) / dx**0.5 + 0.7 * torch.randn(n, dy, generator=g)
    return x, y


@pytest.mark.parametrize(("n", "dx", "dy"), [(600, 6, 9), (400, 20, 4)])
def test_the_error_is_that_of_a_bootstrap(n, dx, dy):
    x, y = related(n, dx, dy)
    rng = np.random.default_rng(0)
    draws = [
        float(linear_cka(x[rows], y[rows])) for rows in (torch.as_tensor(rng.integers(0, n, n)) for _ in range(400))
    ]
    assert cka_standard_error(x, y) == pytest.approx(np.std(draws), rel=0.15)


def test_the_error_is_that_of_fresh_samples():
    values, errors = [], []
    for seed in range(120):
        g = torch.Generator().manual_seed(seed)
        x = torch.randn(300, 5, generator=g)
        y = x * torch.tensor([1.0, 0.5, 0.2, 1.0, 1.0]) + torch.randn(300, 5, generator=g)
        values.append(float(linear_cka(x, y)))
        errors.append(cka_standard_error(x, y))
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.25)


def test_products_between_samples_and_between_features_agree():
    x, y = related(30, 20, 25)
    wide = torch.cat([x, torch.zeros(30, 40)], dim=1), torch.cat([y, torch.zeros(30, 40)], dim=1)
    assert cka_standard_error(*wide) == pytest.approx(cka_standard_error(x, y), rel=1e-9)


@pytest.mark.parametrize("n", [1, 2, 40])
def test_constant_features_have_no_error(n):
    x = torch.ones(n, 3)
    assert cka_standard_error(x, torch.randn(n, 4)) == 0
    reading = cka_reading(x, torch.randn(n, 4))
    interval = (0, 0) if n == 40 else (None, None)
    assert (reading.value, reading.low, reading.high) == (0, *interval)


def test_too_few_images_leave_no_interval():
    """The CKA of two images is 1 whatever they are."""
    reading = cka_reading(torch.randn(2, 8), torch.randn(2, 8))
    assert reading.value == pytest.approx(1)
    assert (reading.low, reading.high, reading.debiased) == (None, None, None)
    whole = cka_reading(*related(200, 8, 8))
    for sides in ((reading, whole), (whole, reading)):
        assert rus_reading(*sides, "original").low is None
    assert judge("cka_f_o", whole, reading) == "no reference"


def test_a_reading_has_value_interval_debiased_and_n():
    x, y = related(200, 8, 8)
    reading = cka_reading(x, y)
    assert reading.value == pytest.approx(float(linear_cka(x, y)))
    assert reading.debiased == pytest.approx(float(linear_cka(x, y, debiased=True)))
    assert reading.n == 200
    assert 0 <= reading.low < reading.value < reading.high <= 1
    assert cka_reading(x[:3], y[:3]).debiased is None


@pytest.mark.parametrize("reference", ["original", "retrained"])
@pytest.mark.parametrize(("wide_f", "wide_r"), [(0.1, 0.02), (0.02, 0.1), (0.05, 0.05), (0.0, 0.05), (0.05, 0.0)])
def test_rus_takes_its_interval_from_both_sides(reference, wide_f, wide_r):
    forget = Reading(value=0.4, low=0.4 - wide_f, high=0.4 + wide_f, debiased=0.35, n=10)
    retain = Reading(value=0.8, low=0.8 - wide_r, high=0.8 + wide_r, debiased=0.79, n=90)
    reading = rus_reading(forget, retain, reference)
    assert reading.value == rus(0.4, 0.8, reference=reference)
    assert reading.debiased == rus(0.35, 0.79, reference=reference)
    # A harmonic mean of Phi and CKA_r by hand, Phi = 1 - CKA_f against the original; it grows with both.
    sign = -1 if reference == "original" else 1
    phi = 0.6 if reference == "original" else 0.4

    def mean(a, b):
        return 2 * a * b / (a + b)

    middle = mean(phi, 0.8)
    above = np.hypot(mean(phi + wide_f, 0.8) - middle, mean(phi, 0.8 + wide_r) - middle)
    below = np.hypot(middle - mean(phi - wide_f, 0.8), middle - mean(phi, 0.8 - wide_r))
    assert sign * (rus(0.5, 0.8, reference=reference) - reading.value) > 0
    assert reading.high - reading.value == pytest.approx(above)
    assert reading.value - reading.low == pytest.approx(below)


def test_the_hull_holds_all_intervals():
    joined = hull([Reading(value=0.5, low=0.4, high=0.6, n=7), Reading(value=0.7, low=0.65, high=0.8)])
    assert (joined.value, joined.low, joined.high, joined.n) == (0.5, 0.4, 0.8, 7)
    assert hull([]) is None
    assert hull([Reading(value=1.0)]).bounds == (1.0, 1.0)


def test_the_hull_is_as_wide_whichever_model_comes_first():
    low, high = Reading(value=0.5, low=0.4, high=0.6, n=7), Reading(value=0.7, low=0.65, high=0.8, n=9)
    for first, second in ((low, high), (high, low)):
        joined = hull([first, second])
        assert joined.bounds == (0.4, 0.8)
        assert (joined.value, joined.n) == (first.value, first.n)
    assert hull([low, Reading(value=0.1)]).bounds == (0.1, 0.6)


def test_a_reading_is_never_nan():
    with pytest.raises(PourError, match="is nan"):
        Reading(value=float("nan"))
    with pytest.raises(PourError, match="is inf"):
        Reading(value=0.0, high=float("inf"))
