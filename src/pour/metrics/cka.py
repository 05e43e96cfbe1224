"""Linear centred kernel alignment (CKA) of two models' features on the same samples, in one pass and exact."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import as_rows, same_rows, to_float64

__all__ = ["linear_cka", "linear_ckas"]

# Number of rows per step: few on a CPU, whose cache should contain the float64 copy; more on a GPU.
_CPU_BLOCK = 2048
_BLOCK = 8192
# A variance below this share of the raw second moment is the rounding error of a constant.
_CONSTANT = 1e-12


def linear_cka(x: Tensor, y: Tensor, *, center: bool = True, debiased: bool = False) -> Tensor:
    """Return the linear CKA of two feature matrices of the same samples.

    CKA = |Y^T X|_F^2 / (|X^T X|_F |Y^T Y|_F) = <K, L>_F / (|K|_F |L|_F), K = X X^T, L = Y Y^T, of centred columns
    (Kornblith et al. 2019). Products are computed between features (d x d) or between samples (n x n), whichever is
    cheaper. They are in float64, because float32 norms of large matrices have errors of several percent.

    Args:
        x: Features of one model, (n, d_x). Feature maps are flattened.
        y: Features of the other model on the same samples in the same order, (n, d_y).
        center: Centre the columns. `False` computes the formula as printed in the paper. It is near 1 for any two sets
            of features whose mean is large compared with their spread.
        debiased: Use the unbiased estimator of HSIC (Song et al. 2012), which does not grow with d/n. It needs n >= 4
            and can be slightly negative.

    Returns:
        A float64 scalar. It is 0 if the features of either model are constant, so also for n = 1.

    Examples:
        >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [0.0, 3.0]])
        >>> linear_cka(x, 3 * x + 1)
        tensor(1., dtype=torch.float64)
    """
    check_options(center, debiased)
    return linear_ckas(x, y, [debiased], center=center)[0]


def linear_ckas(x: Tensor, y: Tensor, debiased: Sequence[bool], *, center: bool = True) -> list[Tensor]:
    """Return the linear CKA of two feature matrices, one value per entry of `debiased`, see `linear_cka`."""
    x, y = check_pair(x, y)
    n, dx, dy = len(x), x.shape[1], y.shape[1]
    # CKA of centred features does not depend on a shift. Subtracting the first row instead of the mean keeps the
    # numbers small, needs no pass over the data, and turns constant features into exact zeros.
    shifts = (x[:1].double(), y[:1].double()) if center else None
    if n * (dx + dy) < dx * dx + dy * dy + dx * dy:
        return [_compute_gram(x, y, shifts, value) for value in debiased]
    moments = add_moments(no_moments(x.device), x, y, shifts)
    return [cka_of_moments(moments, center, value) for value in debiased]


class Moments(NamedTuple):
    """Sums over samples. The unbiased estimator needs the weights w_i = (1, |x_i|^2, |y_i|^2) besides products."""

    xx: Tensor
    """sum x x^T, (d_x, d_x)."""
    yy: Tensor
    """sum y y^T, (d_y, d_y)."""
    xy: Tensor
    """sum x y^T, (d_x, d_y)."""
    weighted_x: Tensor
    """sum w x^T, (3, d_x): its first row is the sum of x."""
    weighted_y: Tensor
    """sum w y^T, (3, d_y)."""
    weights: Tensor
    """sum w w^T, (3, 3): its first entry is n."""

    def sized(self, dx: int, dy: int) -> "Moments":
        """Return a copy in which scalar sums, which have no samples yet, are expanded to matrices."""
        shapes = ((dx, dx), (dy, dy), (dx, dy), (3, dx), (3, dy), (3, 3))
        return Moments(*(m.expand(shape).clone() for m, shape in zip(self, shapes, strict=True)))


def no_moments(device: torch.device | None = None) -> Moments:
    """Return sums over no samples. They get the shape of the first samples."""
    return Moments(*(torch.zeros((), dtype=torch.float64, device=device) for _ in Moments._fields))


@torch.no_grad()
def add_moments(moments: Moments, x: Tensor, y: Tensor, shifts: tuple[Tensor, Tensor] | None = None) -> Moments:
    """Return the sums with the samples of a batch added. Subtract `shifts` from the samples first, if not None."""
    moments = moments.sized(x.shape[1], y.shape[1])
    xx, yy, xy, weighted_x, weighted_y, weights = moments
    rows = _CPU_BLOCK if x.device.type == "cpu" else _BLOCK
    for block_x, block_y in zip(torch.split(x, rows), torch.split(y, rows), strict=True):
        # Subtracting a float64 shift converts in the same pass.
        bx = block_x.double() if shifts is None else block_x - shifts[0]
        by = block_y.double() if shifts is None else block_y - shifts[1]
        w = torch.stack([torch.ones_like(bx[:, 0]), _squares(bx), _squares(by)])
        for total, left, right in (
            (xx, bx.T, bx),
            (yy, by.T, by),
            (xy, bx.T, by),
            (weighted_x, w, bx),
            (weighted_y, w, by),
            (weights, w, w.T),
        ):
            total.addmm_(left, right)
    return moments


def _squares(rows: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return norms.square()


def cka_of_moments(m: Moments, center: bool, debiased: bool) -> Tensor:
    """Return CKA from the sums over all samples."""
    _check_finite(m.weights, m.weighted_x, m.weighted_y, m.xy)
    n = m.weights[0, 0]
    mean_x, mean_y = m.weighted_x[0] / n, m.weighted_y[0] / n
    if not center:
        return _ratio(m.xy.square().sum(), m.xx.square().sum(), m.yy.square().sum(), debiased=False)
    xx, xy, yy = (
        torch.addr(product, a, b, alpha=-float(n))
        for product, a, b in ((m.xx, mean_x, mean_x), (m.xy, mean_x, mean_y), (m.yy, mean_y, mean_y))
    )
    total_x, total_y = xx.trace(), yy.trace()
    if total_x <= _CONSTANT * m.xx.trace() or total_y <= _CONSTANT * m.yy.trace():
        return torch.zeros_like(n)
    hsic = [product.square().sum() for product in (xy, xx, yy)]
    if debiased:
        # |x_i - mean|^2 = u . w_i - 2 mean . x_i, and the same for y with v. So the moments determine the sums of the
        # products of two centred norms over samples.
        one, zero = torch.ones_like(n), torch.zeros_like(n)
        u = torch.stack([mean_x @ mean_x, one, zero])
        v = torch.stack([mean_y @ mean_y, zero, one])
        x_mean, y_mean = m.weighted_x @ mean_x, m.weighted_y @ mean_y
        norms_xy = u @ m.weights @ v - 2 * (u @ y_mean + v @ x_mean) + 4 * (mean_x @ m.xy @ mean_y)
        norms_xx = u @ m.weights @ u - 4 * (u @ x_mean) + 4 * (mean_x @ m.xx @ mean_x)
        norms_yy = v @ m.weights @ v - 4 * (v @ y_mean) + 4 * (mean_y @ m.yy @ mean_y)
        hsic = [
            _unbiased(hsic[0], norms_xy, total_x, total_y, n),
            _unbiased(hsic[1], norms_xx, total_x, total_x, n),
            _unbiased(hsic[2], norms_yy, total_y, total_y, n),
        ]
    return _ratio(*hsic, debiased=debiased)


@torch.no_grad()
def _compute_gram(x: Tensor, y: Tensor, shifts: tuple[Tensor, Tensor] | None, debiased: bool) -> Tensor:
    a, b = (gram(z, None if shifts is None else shifts[i]) for i, z in enumerate((x, y)))
    return gram_cka(a, b, gram_hsic(a, a, debiased), gram_hsic(b, b, debiased), debiased)


def gram(features: Tensor, shift: Tensor | None) -> Tensor:
    """Return the n x n matrix of products of the samples in float64, centred if `shift` is not None."""
    rows = to_float64(features)
    if shift is not None:
        rows = rows - shift
        rows -= rows.mean(dim=0)
    product = rows @ rows.T
    _check_finite(product)
    return product


def gram_hsic(a: Tensor, b: Tensor, debiased: bool) -> Tensor:
    """Return the HSIC of two centred Gram matrices, without the factor that cancels in CKA."""
    biased = torch.dot(a.flatten(), b.flatten())
    if not debiased:
        return biased
    n = biased.new_tensor(len(a))
    return _unbiased(biased, a.diagonal() @ b.diagonal(), a.trace(), b.trace(), n)


def gram_cka(a: Tensor, b: Tensor, hsic_a: Tensor, hsic_b: Tensor, debiased: bool) -> Tensor:
    """Return CKA from two centred Gram matrices and their HSIC with themselves."""
    return _ratio(gram_hsic(a, b, debiased), hsic_a, hsic_b, debiased=debiased)


def _unbiased(biased: Tensor, norms: Tensor, total_x: Tensor, total_y: Tensor, n: Tensor) -> Tensor:
    """Return Song's unbiased HSIC times n (n - 3), from centred features.

    If the columns are centred, the row sums of the Gram matrix without its diagonal are minus that diagonal. The
    estimator is then |X^T Y|^2 - n/(n-2) sum_i |x_i|^2 |y_i|^2 + (sum |x_i|^2) (sum |y_i|^2) / ((n-1)(n-2)).
    """
    if float(n) < 4:
        raise UsageError(f"the debiased CKA needs at least 4 samples, got {int(n)}: use debiased=False.")
    value = biased - n / (n - 2) * norms + total_x * total_y / ((n - 1) * (n - 2))
    # A sum that cancels is zero up to rounding.
    return torch.where(value.abs() <= _CONSTANT * biased.abs(), torch.zeros_like(value), value)


def _ratio(xy: Tensor, xx: Tensor, yy: Tensor, *, debiased: bool) -> Tensor:
    if not (float(xx) > 0 and float(yy) > 0):
        return torch.zeros_like(xy)
    value = xy / (xx.sqrt() * yy.sqrt())
    # The biased value can be outside of [0, 1] only by rounding.
    return value if debiased else value.clamp(0, 1)


def check_options(center: bool, debiased: bool) -> None:
    """Raise UsageError for options that contradict each other."""
    if debiased and not center:
        raise UsageError("the debiased CKA is centred by construction: use debiased=True with center=True.")


def check_pair(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of two models on the same samples as rows, on a device with float64."""
    x, y = as_rows(x, "x"), as_rows(y, "y")
    same_rows(x, y, ("x", "y"))
    # mps has no float64.
    return (x.cpu(), y.cpu()) if x.device.type == "mps" else (x.detach(), y.detach())


def _check_finite(*sums: Tensor) -> None:
    # One bad feature makes the sums NaN or infinite, so that batches need no check.
    if not all(bool(torch.isfinite(s).all()) for s in sums):
        raise UsageError("the features contain NaN, infinite or too large values: check the models that produced them.")
