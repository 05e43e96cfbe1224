from math import sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pour.errors import UsageError
from pour.metrics import Estimate, auc_estimate, balanced_accuracy, roc_auc, wilson

Z = 1.959963984540054


@settings(deadline=None, max_examples=60)
@given(n=st.integers(1, 5000), share=st.floats(0, 1))
def test_wilson_ends_solve_the_score_equation(n, share):
    k = round(share * n)
    estimate = wilson(k, n)
    assert 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    for end in (estimate.low, estimate.high):
        assert (k / n - end) ** 2 == pytest.approx(Z**2 * end * (1 - end) / n, abs=1e-9)
    assert estimate.high > estimate.low


def test_wilson_textbook_value():
    # Newcombe (1998), 81 of 263.
    estimate = wilson(81, 263)
    assert (round(estimate.low, 4), round(estimate.high, 4)) == (0.2553, 0.3662)


def test_balanced_accuracy_follows_newcombes_difference():
    # Newcombe (1998b), example (a): 56/70 - 48/80 = 0.20 with the interval 0.0524 to 0.3339.
    estimate = balanced_accuracy(wilson(56, 70), wilson(48, 80))
    assert estimate.value == pytest.approx(0.6)
    assert round(2 * estimate.low - 1, 4) == 0.0524
    assert round(2 * estimate.high - 1, 4) == 0.3339


@settings(deadline=None, max_examples=40)
@given(auc=st.floats(0, 1), m=st.integers(1, 400), n=st.integers(1, 400))
def test_auc_interval_solves_the_hanley_mcneil_equation(auc, m, n):
    def variance(t):
        # Hanley and McNeil (1982) with both sizes replaced by their mean in the numerator.
        size = (m + n) / 2
        q1, q2 = t / (2 - t), 2 * t * t / (1 + t)
        return (t * (1 - t) + (size - 1) * (q1 - t * t + q2 - t * t)) / (m * n)

    estimate = auc_estimate(auc, m, n)
    assert 0 <= estimate.low <= auc <= estimate.high <= 1
    for end in (estimate.low, estimate.high):
        if 1e-9 < end < 1 - 1e-9:
            assert abs(auc - end) == pytest.approx(Z * sqrt(max(0.0, variance(end))), abs=1e-6)


def test_auc_interval_covers_about_95_percent():
    rng = np.random.default_rng(0)
    truth = 0.7602499389  # Phi(1 / sqrt 2)
    hits = 0
    for _ in range(400):
        auc = roc_auc(torch.from_numpy(rng.normal(1, 1, 60)), torch.from_numpy(rng.normal(0, 1, 40)))
        hits += auc_estimate(auc, 60, 40).covers(truth)
    assert 0.92 <= hits / 400 <= 0.98


@settings(deadline=None, max_examples=50)
@given(m=st.integers(1, 40), n=st.integers(1, 40), levels=st.integers(1, 30), seed=st.integers(0, 999))
def test_roc_auc_agrees_with_scikit_learn_with_ties(m, n, levels, seed):
    rng = np.random.default_rng(seed)
    positive, negative = rng.integers(0, levels, m) + 0.3, rng.integers(0, levels, n) + 0.3
    expected = roc_auc_score(np.r_[np.ones(m), np.zeros(n)], np.r_[positive, negative])
    assert roc_auc(torch.from_numpy(positive), torch.from_numpy(negative)) == pytest.approx(expected, abs=1e-12)


def test_wrong_use_says_what_is_wrong():
    with pytest.raises(UsageError, match="got 3 of 2"):
        wilson(3, 2)
    with pytest.raises(UsageError, match="n >= 1"):
        wilson(0, 0)
    with pytest.raises(UsageError, match="samples of both kinds"):
        auc_estimate(0.5, 0, 3)
    with pytest.raises(UsageError, match="samples of both kinds"):
        roc_auc(torch.rand(3), torch.rand(0))
    with pytest.raises(UsageError, match="NaN"):
        roc_auc(torch.tensor([float("nan")]), torch.rand(2))


def test_estimate_prints_its_interval():
    assert str(Estimate(0.5, 0.25, 0.75)) == "0.500 [0.250, 0.750]"
