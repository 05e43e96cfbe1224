import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from pour.errors import UsageError
from pour.metrics import logistic_regression, standardise


def problem(n, d, separation, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64)
    y = torch.rand(n, generator=g) < 0.2
    x[y, 0] += separation
    return standardise(x)[0], y


def sklearn_fit(x, y, C, balanced):
    model = LogisticRegression(
        C=C, class_weight="balanced" if balanced else None, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return model.fit(x.numpy(), y.numpy())


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("C", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("n", "d", "separation"), [(400, 10, 1), (300, 8, 9), (80, 120, 2), (600, 40, 0)])
def test_coefficients_agree_with_scikit_learn(n, d, separation, C, balanced):
    x, y = problem(n, d, separation)
    fit = logistic_regression(x, y, C=C, balanced=balanced)
    reference = sklearn_fit(x, y, C, balanced)
    assert np.abs(fit.coef.numpy() - reference.coef_).max() < 1e-6
    assert abs(fit.intercept.item() - reference.intercept_[0]) < 1e-6
    assert np.abs(fit.decision(x)[:, 0].numpy() - reference.decision_function(x.numpy())).max() < 1e-5


def test_problems_are_solved_together_as_if_alone():
    x, y = problem(500, 12, 2)
    other = x[:, 3] > 0.5
    include = torch.stack([torch.arange(500) % 5 != k for k in range(5)], dim=1)
    folds = logistic_regression(x, y, include=include)
    assert folds.coef.shape == (5, 12)
    for k in range(5):
        reference = sklearn_fit(x[include[:, k]], y[include[:, k]], 1.0, True)
        assert np.abs(folds.coef[k].numpy() - reference.coef_[0]).max() < 1e-6
    both = logistic_regression(x, torch.stack([y, other], dim=1))
    for k, target in enumerate((y, other)):
        assert np.abs(both.coef[k].numpy() - sklearn_fit(x, target, 1.0, True).coef_[0]).max() < 1e-6


def test_the_gradient_vanishes_on_ill_conditioned_features():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(400, 30, generator=g, dtype=torch.float64) @ torch.randn(30, 30, generator=g, dtype=torch.float64)
    x = x * torch.logspace(0, -5, 30, dtype=torch.float64)
    y = x[:, 0] + 0.1 * torch.randn(400, generator=g, dtype=torch.float64) > 0
    fit = logistic_regression(x, y, C=10.0, balanced=False)
    w, b = fit.coef[0].requires_grad_(), fit.intercept.requires_grad_()
    sign = y.double() * 2 - 1
    loss = w.square().sum() / 2 + 10 * torch.nn.functional.softplus(-sign * (x @ w + b)).sum()
    loss.backward()
    assert w.grad.abs().max() < 1e-4
    assert b.grad.abs().max() < 1e-4


def test_constant_features_give_zero_coefficients():
    x = torch.ones(40, 3)
    fit = logistic_regression(standardise(x.double() * 0.1)[0], torch.arange(40) < 10)
    assert fit.coef.abs().max() < 1e-12
    assert fit.intercept.item() == pytest.approx(0, abs=1e-9)


def test_standardise_agrees_with_scikit_learn():
    g = torch.Generator().manual_seed(2)
    train, test = (torch.randn(50, 4, generator=g, dtype=torch.float64) * 3 + 7 for _ in range(2))
    train[:, 2] = 0.1
    scaler = StandardScaler().fit(train.numpy())
    ours = standardise(train, test)
    assert np.abs(ours[0].numpy() - scaler.transform(train.numpy())).max() < 1e-12
    assert np.abs(ours[1].numpy() - scaler.transform(test.numpy())).max() < 1e-12


def test_wrong_use_says_what_is_wrong():
    x, y = problem(30, 3, 1)
    with pytest.raises(UsageError, match="problem 0 has samples of one side only"):
        logistic_regression(x, torch.ones(30, dtype=torch.bool))
    include = torch.stack([torch.ones(30, dtype=torch.bool), y], dim=1)
    with pytest.raises(UsageError, match="problem 1 has samples of one side only"):
        logistic_regression(x, y, include=include)
    with pytest.raises(UsageError, match="targets must be bool"):
        logistic_regression(x, y.long())
    with pytest.raises(UsageError, match="for each of the 30 samples"):
        logistic_regression(x, y[:20])
    with pytest.raises(UsageError, match="include must be bool"):
        logistic_regression(x, y, include=include.double())
    with pytest.raises(UsageError, match="include must be bool"):
        logistic_regression(x, torch.stack([y, y, y], dim=1), include=include)
    with pytest.raises(UsageError, match="C must be positive"):
        logistic_regression(x, y, C=0)
    with pytest.raises(UsageError, match="NaN or infinite values in 1 of 30 rows"):
        logistic_regression(torch.cat([x[:29], x[:1] * float("nan")]), y)
