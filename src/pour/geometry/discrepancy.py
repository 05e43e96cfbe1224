"""Distances between two samples of features: MMD, energy, Wasserstein.

All are V-statistics: distances of the two empirical distributions, never negative. They are computed in float64 and
outside the autograd graph, so they cannot be trained on.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pour.errors import PourError, UsageError
from pour.geometry._inputs import as_samples

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = [
    "energy_distance",
    "mean_over_pairs",
    "median_bandwidth",
    "mmd",
    "random_slices",
    "rbf_kernel",
    "sliced_wasserstein",
    "wasserstein",
]

# Number of pairs in memory, 8 MiB in float64 and two copies; the n x n matrix of 10,000 rows would be 800 MB.
_PAIRS_AT_ONCE = 2**20
_MEDIAN_ROWS = 2000


def mmd(x: Tensor, y: Tensor, *, bandwidth: float | None = None) -> Tensor:
    r"""Return the maximum mean discrepancy of `(n, d)` and `(m, d)` samples, not squared.

    With the kernel $k(a, b) = \exp(-\|a - b\|^2 / 2 h^2)$,
    $\mathrm{MMD}^2 = \overline{k}(x, x) + \overline{k}(y, y) - 2\,\overline{k}(x, y)$, means over all pairs.

    Args:
        x: `(n, d)`.
        y: `(m, d)`.
        bandwidth: Bandwidth h, by default `median_bandwidth` of both samples together.

    Examples:
        >>> import torch
        >>> from pour.geometry import mmd
        >>> x = torch.randn(100, 8)
        >>> float(mmd(x, x)), bool(mmd(x, x + 1) > 0.3)
        (0.0, True)
    """
    samples = comparable(x, y)
    h = median_bandwidth(*samples) if bandwidth is None else bandwidth
    return spread_between(mean_over_pairs(samples, rbf_kernel(h)), (1.0, -1.0))


def energy_distance(x: Tensor, y: Tensor) -> Tensor:
    r"""Return the square root of the energy distance of `(n, d)` and `(m, d)` samples, a metric.

    $$
    E^2 = 2\,\overline{\|x - y\|} - \overline{\|x - x'\|} - \overline{\|y - y'\|}.
    $$

    Examples:
        >>> import torch
        >>> from pour.geometry import energy_distance
        >>> float(energy_distance(torch.tensor([[0.0]]), torch.tensor([[2.0]])))
        2.0
    """
    # The distance is a kernel with the opposite sign, so the sum of pair means is minus the square.
    return spread_between(-mean_over_pairs(comparable(x, y), torch.sqrt), (1.0, -1.0))


def sliced_wasserstein(
    x: Tensor,
    y: Tensor,
    *,
    order: Literal[1, 2] = 1,
    slices: Tensor | None = None,
    num_slices: int = 256,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return the sliced Wasserstein distance $(\overline{W_p^p(\theta x, \theta y)})^{1/p}$, over slices θ.

    Args:
        x: `(n, d)`.
        y: `(m, d)`; n and m may differ.
        order: p.
        slices: `(s, d)` directions to project on; by default `num_slices` random unit directions.
        num_slices: Number of random directions.
        generator: Source of the directions; without it they are the same at every call.

    Examples:
        >>> import torch
        >>> from pour.geometry import sliced_wasserstein
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> float(sliced_wasserstein(x, x + 3, slices=torch.ones(1, 1)))
        3.0
    """
    if order not in (1, 2):
        raise UsageError(f"order is {order}; the distance is offered for 1 and 2.")
    a, b = comparable(x, y)
    if slices is None:
        slices = random_slices(num_slices, a.shape[1], generator)
    axes = as_samples(slices, "slices").to(a.device)
    if axes.shape[1] != a.shape[1]:
        raise UsageError(
            f"slices have width {axes.shape[1]}, the samples have {a.shape[1]}; pass slices of that width."
        )

    # The quantile functions are steps at i/n and j/m: on the lattice 1/(nm) both are constant between merged ends.
    n, m = len(a), len(b)
    ends = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n]).sort().values.to(a.device)
    shares = torch.diff(ends, prepend=ends.new_zeros(1)).double() / (n * m)
    from_a, from_b = (ends - 1) // m, (ends - 1) // n
    total = a.new_zeros(())
    for part in torch.split(axes, max(1, _PAIRS_AT_ONCE // (n + m))):
        gap = (a @ part.T).sort(dim=0).values[from_a] - (b @ part.T).sort(dim=0).values[from_b]
        total += (shares @ gap.abs() ** order).sum()
    return (total / len(axes)) ** (1 / order)


def wasserstein(x: Tensor, y: Tensor, *, order: Literal[1, 2] = 1) -> Tensor:
    """Return the exact Wasserstein distance of `(n, d)` and `(m, d)` samples, by linear programming.

    It needs the n x m matrix of costs and about cubic time, so it is for some thousand rows. For more rows use
    `sliced_wasserstein`. POT solves the program, `pip install "pour-unlearning[transport]"`.

    Examples:
        >>> import torch
        >>> from pour.geometry import wasserstein
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> round(float(wasserstein(x, x.flip(0) + torch.tensor([0.0, 2.0]))), 6)
        2.0
    """
    if order not in (1, 2):
        raise UsageError(f"order is {order}; the distance is offered for 1 and 2.")
    try:
        ot = importlib.import_module("ot")
    except ImportError as error:
        raise UsageError(
            'Exact Wasserstein distances need POT; pip install "pour-unlearning[transport]", '
            "or use the sliced distance."
        ) from error
    a, b = comparable(x, y)
    squares = torch.cat([squared_distances(rows, b) for rows in torch.split(a, max(1, _PAIRS_AT_ONCE // len(b)))])
    costs = (squares.sqrt() if order == 1 else squares).cpu().numpy()
    value, log = ot.emd2([], [], costs, numItermax=10_000_000, log=True)
    if log["warning"]:
        raise PourError(f"The exact transport of {len(a)} to {len(b)} rows did not converge: {log['warning']}.")
    return torch.tensor(max(float(value), 0.0) ** (1 / order), dtype=torch.float64, device=a.device)


def mean_over_pairs(groups: Sequence[Tensor], function: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the `(g, g)` matrix of means of `function` of the squared distance, over all pairs between two groups.

    Every MMD or energy distance between mixtures of the groups follows from this matrix (see `spread_between`),
    without the n x n matrix of all pairs. Empty groups have zeros in their row and column.

    Args:
        groups: Samples of the same width, `(n_i, d)`.
        function: Function of a tensor of squared distances, for example `rbf_kernel` or `torch.sqrt`.
    """
    means = groups[0].new_zeros(len(groups), len(groups))
    for i, first in enumerate(groups):
        for j, second in enumerate(groups[i:], start=i):
            if not len(first) or not len(second):
                continue
            rows_at_once = max(1, _PAIRS_AT_ONCE // len(second))
            for rows in torch.split(first, rows_at_once):
                means[i, j] += function(squared_distances(rows, second)).sum()
            means[i, j] /= len(first) * len(second)
            means[j, i] = means[i, j]
    return means


def spread_between(means: Tensor, weights: Sequence[float]) -> Tensor:
    """Return `sqrt(w^T K w)`, the distance of two mixtures; `weights` are the differences of their shares."""
    w = means.new_tensor(weights)
    # Rounding can leave a distance of zero a little below zero.
    return (w @ means @ w).clamp(min=0).sqrt()


def rbf_kernel(bandwidth: float) -> Callable[[Tensor], Tensor]:
    """Return the Gaussian kernel as a function of squared distances, `exp(-s / 2 h^2)`."""
    if not (math.isfinite(bandwidth) and bandwidth > 0):
        raise UsageError(f"bandwidth is {bandwidth}; expected a positive number.")
    return lambda squares: torch.exp(squares / (-2 * bandwidth**2))


def median_bandwidth(*samples: Tensor) -> float:
    """Return the median distance between distinct points of all samples together, the usual bandwidth of a kernel.

    Of more than 2,000 rows, 2,000 evenly spaced rows are used. Distances of 0 are ignored, because collapsed features
    can make more than half of all distances zero. If all points are equal, the bandwidth is 1.
    """
    rows = torch.cat([as_samples(sample, "sample") for sample in samples])
    if len(rows) > _MEDIAN_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, _MEDIAN_ROWS, dtype=torch.float64).long()]
    # Far from the origin, the rounding of the squared norms would exceed the distances.
    rows = rows - rows.mean(dim=0)
    parts = []
    for first in range(0, len(rows), rows_at_once := max(1, _PAIRS_AT_ONCE // len(rows))):
        squares = squared_distances(rows[first : first + rows_at_once], rows)
        # Each pair once, and no row with itself.
        squares.triu_(diagonal=first + 1)
        parts.append(squares[squares > 0])
    positive = torch.cat(parts)
    return float(positive.median().sqrt()) if len(positive) else 1.0


def random_slices(num_slices: int, dim: int, generator: torch.Generator | None = None) -> Tensor:
    """Return `(s, d)` uniform random unit directions in float64; without a generator always the same."""
    if num_slices < 1:
        raise UsageError(f"num_slices is {num_slices}; draw at least one.")
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    normal = torch.randn(num_slices, dim, dtype=torch.float64, device=generator.device, generator=generator)
    norms: Tensor = torch.linalg.vector_norm(normal, dim=1, keepdim=True)
    return normal / norms


def comparable(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return two samples in float64 on the same device, minus their common mean."""
    a, b = as_samples(x, "x"), as_samples(y, "y")
    b = b.to(a.device)
    if a.shape[1] != b.shape[1]:
        problem = f"The samples have widths {a.shape[1]} and {b.shape[1]}"
        raise UsageError(f"{problem}; distances need the same features (align different networks with procrustes).")
    # The shift changes no distance, and squared_distances loses fewer digits on rows close to the origin.
    center = (a.sum(dim=0) + b.sum(dim=0)) / (len(a) + len(b))
    return a - center, b - center


def squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the `(n, m)` squared distances as `|x|^2 + |y|^2 - 2 x.y`, without the (n, m, d) differences."""
    size = x.square().sum(dim=1).unsqueeze(1) + y.square().sum(dim=1)
    squares = torch.addmm(size, x, y.T, alpha=-2)
    # The difference of equal points is rounding, whose square root would not be small.
    return squares.masked_fill_(squares <= size.mul_(x.shape[1] * torch.finfo(x.dtype).eps), 0)
