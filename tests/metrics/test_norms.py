import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from pour.errors import UsageError
from pour.metrics import norm_leak


def test_agrees_with_scikit_learn_and_folds_the_sign():
    g = torch.Generator().manual_seed(0)
    forget, retain = torch.randn(80, 6, generator=g), 1.3 * torch.randn(150, 6, generator=g)
    leak = norm_leak(forget, retain)
    norms = np.r_[np.linalg.norm(forget.double(), axis=1), np.linalg.norm(retain.double(), axis=1)]
    expected = roc_auc_score(np.r_[np.ones(80), np.zeros(150)], norms)
    assert leak.auc.value == pytest.approx(expected, abs=1e-12)
    assert leak.auc.value < 0.5
    assert leak.leak.value == pytest.approx(1 - expected, abs=1e-12)
    assert (leak.leak.low, leak.leak.high) == pytest.approx((1 - leak.auc.high, 1 - leak.auc.low))
    assert leak.mean_forget == pytest.approx(norms[:80].mean())
    mirrored = norm_leak(retain, forget)
    assert mirrored.leak.value == pytest.approx(leak.leak.value)


def test_equal_norms_leak_nothing():
    leak = norm_leak(torch.ones(10, 4), -torch.ones(12, 4))
    assert leak.auc.value == leak.leak.value == leak.leak.low == 0.5


def test_wrong_use_says_what_is_wrong():
    good = torch.rand(5, 3)
    with pytest.raises(UsageError, match="forget_features must have shape"):
        norm_leak(good[:0], good)
    with pytest.raises(UsageError, match="retain_features holds NaN"):
        norm_leak(good, good * float("nan"))
