import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from pour.errors import UsageError
from pour.metrics import auc_estimate, norm_leak


def test_agrees_with_scikit_learn_and_folds_the_sign():
    g = torch.Generator().manual_seed(0)
    forget, retain = torch.randn(80, 6, generator=g), 1.3 * torch.randn(150, 6, generator=g)
    leak = norm_leak(forget, retain)
    norms = np.r_[np.linalg.norm(forget.double(), axis=1), np.linalg.norm(retain.double(), axis=1)]
    expected = roc_auc_score(np.r_[np.ones(80), np.zeros(150)], norms)
    assert expected < 0.5
    assert leak.value == pytest.approx(1 - expected, abs=1e-12)
    area = auc_estimate(expected, 80, 150)
    assert (leak.low, leak.high) == pytest.approx((1 - area.high, 1 - area.low))
    mirrored = norm_leak(retain, forget)
    assert mirrored.value == pytest.approx(leak.value)


def test_equal_norms_leak_nothing():
    leak = norm_leak(torch.ones(10, 4), -torch.ones(12, 4))
    assert leak.value == leak.low == 0.5


def test_wrong_use_says_what_is_wrong():
    good = torch.rand(5, 3)
    with pytest.raises(UsageError, match="forget_features must have shape"):
        norm_leak(good[:0], good)
    with pytest.raises(UsageError, match="retain_features contains NaN"):
        norm_leak(good, good * float("nan"))
