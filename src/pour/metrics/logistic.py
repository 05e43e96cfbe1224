"""L2-regularised logistic regression for several problems at once (folds, one class against others), in float64."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from pour.errors import PourError, UsageError
from pour.geometry._inputs import double_blocks, grouped_blocks, sum_rows
from pour.metrics._inputs import finite_rows

__all__ = ["LogisticFit", "logistic_regression", "standardise"]

# A full Newton step ends the search if its predicted gain in the mean loss is below this limit. The remaining error is
# smaller than the gain by the square of the residual of the conjugate gradients.
_DECREMENT = 1e-13
_RESIDUAL = 1e-2
_CG_STEPS = 40
_NEWTON_STEPS = 60


@dataclass(frozen=True, slots=True)
class LogisticFit:
    """Fitted coefficients of each problem. The sign of a linear score is the predicted side."""

    coef: Tensor
    """Coefficients, shape (problems, d), float64."""
    intercept: Tensor
    """Intercepts, shape (problems,), float64."""

    def decision(self, features: Tensor) -> Tensor:
        """Return the scores x . coef + intercept of features (n, d), (n, problems). A positive score predicts True."""
        return torch.addmm(self.intercept, features.to(self.coef), self.coef.T)


@torch.no_grad()
def logistic_regression(
    features: Tensor,
    targets: Tensor,
    *,
    include: Tensor | None = None,
    C: float = 1.0,
    balanced: bool = True,
    standardised: bool = False,
) -> LogisticFit:
    """Fit a binary logistic regression to each of B problems on the same features, all in one call.

    The objective is |w|^2 / 2 + C sum_i s_i log(1 + exp(-y_i (w . x_i + b))) with y = +-1; the intercept b is not
    regularised. It is the objective of scikit-learn's `LogisticRegression(C=C, class_weight="balanced")`. It is
    minimised by Newton steps with line search. Conjugate gradients solve each step, preconditioned with the exact
    Hessian of an earlier step. The Hessian is computed again if it no longer helps. The search stops after a step
    whose predicted gain in the mean loss is below 1e-13.

    Args:
        features: shape (n, d), on any device; standardise them first (`standardise`), or ask for it.
        targets: the side of each sample, bool, shape (n,), or (n, B) for a different question in each problem.
        include: which samples belong to which problem, bool, shape (n, B); default: all, in one problem.
        C: inverse strength of the regularisation.
        balanced: give both sides of a problem the same total weight, s_i = n / (2 n_side).
        standardised: fit the features as `standardise` returns them, without a copy of all of them; the result applies
            to features as they are given here.

    Examples:
        >>> x = torch.tensor([[-2.0], [-1.0], [1.0], [2.0]])
        >>> fit = logistic_regression(x, torch.tensor([False, False, True, True]))
        >>> (fit.decision(x)[:, 0] > 0).tolist()
        [False, False, True, True]
    """
    rows = finite_rows(features, "features")
    n, d = rows.shape
    if not C > 0:
        raise UsageError(f"C must be positive, got {C}.")
    side, used = _problems(targets, include, n, rows.device)
    y = side.double() * 2 - 1
    weight = _weights(side, used, balanced)
    mean, deviation = torch.tensor([[0.0], [1.0]], dtype=torch.float64, device=rows.device).expand(2, d)
    if standardised:
        mean, deviation = _mean_and_deviation(rows)
    x = _with_ones(rows, mean, deviation)
    ridge = (1 / (C * used.sum(dim=0).double())).expand(d + 1, -1).clone()
    ridge[-1] = 0

    w = x.new_zeros(d + 1, y.shape[1])
    scores = x.new_zeros(n, y.shape[1])
    factor: Tensor | None = None
    done = torch.zeros(y.shape[1], dtype=torch.bool, device=x.device)
    for _ in range(_NEWTON_STEPS):
        chance = torch.sigmoid(-y * scores)
        gradient = ridge * w - x.T @ (weight * chance * y)
        curvature = weight * chance * (1 - chance)
        if factor is None:
            factor = _factor(x, curvature, ridge)
        step, poor = _newton_direction(x, curvature, ridge, gradient, factor)
        if poor:
            factor = None
        decrement = -(gradient * step).sum(dim=0)
        step = torch.where(done, torch.zeros_like(step), step)
        moved = x @ step
        size = _line_search(w, step, scores, moved, y, weight, ridge, decrement)
        w, scores = w + size * step, scores + size * moved
        done |= (decrement < _DECREMENT) & (size == 1)
        if bool(done.all()):
            coef = w[:-1].T / deviation
            return LogisticFit(coef, w[-1] - coef @ mean)
    raise PourError(
        f"logistic regression did not converge in {_NEWTON_STEPS} Newton steps: standardise the features "
        f"or use a smaller C than {C}."
    )


def standardise(reference: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """Return the matrices shifted and scaled so that each column of `reference` has mean 0 and deviation 1.

    Columns that are constant in `reference` are only shifted.

    Examples:
        >>> standardise(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))[0].tolist()
        [[-1.0, 0.0], [1.0, 0.0]]
    """
    mean, deviation = _mean_and_deviation(reference)
    return tuple((z - mean) / deviation for z in (reference, *others))


def _mean_and_deviation(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and deviation of each column in float64; the deviation of a constant column is 1."""
    mean = sum_rows(rows)[0] / len(rows)
    squares = torch.zeros_like(mean)
    for block in double_blocks(rows):
        squares += (block - mean).square().sum(dim=0)
    deviation = (squares / len(rows)).sqrt()
    # The deviation of a constant column is some rounding errors of its value. Dividing by it would return noise.
    constant = deviation <= 1000 * torch.finfo(mean.dtype).eps * mean.abs()
    return mean, torch.where(constant, torch.ones_like(deviation), deviation)


def _with_ones(rows: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Return the rows in float64, shifted and scaled, and a last column of ones."""
    x = rows.new_ones(len(rows), rows.shape[1] + 1, dtype=torch.float64)
    for block, place in grouped_blocks(rows, x):
        place[:, :-1] = (block - mean) / deviation
    return x


def _problems(targets: Tensor, include: Tensor | None, n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    if targets.dtype != torch.bool or targets.shape[:1] != (n,) or targets.ndim > 2:
        raise UsageError(
            f"targets must be bool with one entry for each of the {n} samples, "
            f"got {targets.dtype} of shape {tuple(targets.shape)}."
        )
    side = targets.to(device).view(n, -1)
    used = torch.ones_like(side) if include is None else include.to(device)
    problems = max(side.shape[1], used.shape[-1])
    if used.dtype != torch.bool or used.shape not in ((n, 1), (n, problems)) or side.shape[1] not in (1, problems):
        raise UsageError(
            f"include must be bool of shape ({n}, problems) with as many problems as targets has, "
            f"got {used.dtype} of shape {tuple(used.shape)}."
        )
    side, used = side.expand(n, problems), used.expand(n, problems)
    empty = ~((side & used).any(dim=0) & (~side & used).any(dim=0))
    if bool(empty.any()):
        raise UsageError(
            f"problem {int(empty.nonzero()[0])} has samples of one side only: a classifier needs both sides."
        )
    return side, used


def _weights(side: Tensor, used: Tensor, balanced: bool) -> Tensor:
    """Return the weights of the mean loss, (n, B). They sum to 1 in each problem, with and without balancing."""
    total = used.sum(dim=0).double()
    if not balanced:
        return used / total
    per_side = torch.stack([(side & used).sum(dim=0), (~side & used).sum(dim=0)]).double()
    return used * torch.where(side, 0.5 / per_side[0], 0.5 / per_side[1])


def _factor(x: Tensor, curvature: Tensor, ridge: Tensor) -> Tensor:
    """Return the Cholesky factors of the problems' Hessians, (B, d + 1, d + 1)."""
    factors = []
    for h, r in zip(curvature.T, ridge.T, strict=True):
        hessian = x.new_zeros(x.shape[1], x.shape[1])
        for block, part in grouped_blocks(x, h):
            rows = part > 0
            root = block[rows] * part[rows].sqrt().unsqueeze(1)
            hessian.addmm_(root.T, root)
        # The intercept has no ridge, and its curvature can underflow if all samples are far on their side.
        hessian.diagonal().add_(r + 1e-12 * hessian.diagonal().max() + torch.finfo(x.dtype).tiny)
        factors.append(torch.linalg.cholesky(hessian))
    return torch.stack(factors)


def _newton_direction(
    x: Tensor, curvature: Tensor, ridge: Tensor, gradient: Tensor, factor: Tensor
) -> tuple[Tensor, bool]:
    """Return the solution of H step = -gradient for all problems, and whether the preconditioner is too old."""

    def precondition(r: Tensor) -> Tensor:
        return torch.cholesky_solve(r.T.unsqueeze(2), factor).squeeze(2).T

    step = torch.zeros_like(gradient)
    residual = -gradient
    z = precondition(residual)
    direction = z
    energy = start = (residual * z).sum(dim=0)
    for count in range(1, _CG_STEPS + 1):
        image = x.T @ (curvature * (x @ direction)) + ridge * direction
        bend = (direction * image).sum(dim=0)
        alpha = torch.where(bend > 0, energy / bend, torch.zeros_like(bend))
        step = step + alpha * direction
        residual = residual - alpha * image
        z = precondition(residual)
        previous, energy = energy, (residual * z).sum(dim=0)
        if bool((energy <= _RESIDUAL**2 * start).all()):
            return step, count > 8
        direction = z + torch.where(previous > 0, energy / previous, torch.zeros_like(energy)) * direction
    return step, True


def _line_search(
    w: Tensor, step: Tensor, scores: Tensor, moved: Tensor, y: Tensor, weight: Tensor, ridge: Tensor, decrement: Tensor
) -> Tensor:
    """Return the size of each problem's step, halved until the loss decreases enough.

    Scores are linear in the size, so a trial needs no product with the features.
    """

    def loss(size: Tensor) -> Tensor:
        fit = (weight * F.softplus(-y * (scores + size * moved))).sum(dim=0)
        return fit + (ridge * (w + size * step).square()).sum(dim=0) / 2

    size = torch.ones_like(decrement)
    start = loss(torch.zeros_like(size))
    # Near the minimum the gain is below the rounding of the loss itself.
    slack = 1e-14 * start
    for _ in range(40):
        too_long = loss(size) > start - 1e-4 * size * decrement + slack
        if not bool(too_long.any()):
            break
        size = torch.where(too_long, size / 2, size)
    return size
