"""The simplex equiangular tight frame (ETF): the shape that class means take under Neural Collapse."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pour.errors import UsageError

__all__ = ["simplex_etf"]


def simplex_etf(
    num_classes: int,
    dim: int,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Return the vertices of a regular simplex, one unit row per class.

    The rows satisfy $\|v_i\| = 1$, $v_i^\top v_j = -1/(C-1)$ for $i \ne j$ and
    $\sum_i v_i = 0$.

    No C unit vectors are further apart than these. The paper's appendix prints the reason with the inequality
    reversed (`min v_c . v_c' <= -1/(C-1)`, which C nearly equal vectors violate). The true inequality, because
    $0 \le \|\sum_c v_c\|^2 = C + \sum_{c \ne c'} v_c^\top v_{c'}$, is

    $$
    \max_{c \ne c'} v_c^\top v_{c'} \ge -\frac{1}{C-1},
    $$

    has equality only for the simplex ETF, whose smallest angle therefore is as large as possible.

    Args:
        num_classes: Number of vertices C, at least 2.
        dim: Width d of each row, at least C - 1.
        dtype: Floating-point dtype of the result; the rows are computed in float64.
        device: Device of the result.
        generator: Source of a random rotation. Without it the frame is always the same, in the first C - 1
            coordinates.

    Returns:
        A `(C, d)` tensor.

    Examples:
        >>> from pour.geometry import simplex_etf
        >>> simplex_etf(3, 2)
        tensor([[ 0.8660,  0.5000],
                [-0.8660,  0.5000],
                [ 0.0000, -1.0000]])
    """
    if num_classes < 2:
        raise UsageError(f"A simplex of {num_classes} classes has no angles; num_classes must be at least 2.")
    if dim < num_classes - 1:
        problem = f"A simplex of {num_classes} classes does not fit in {dim} dimensions"
        raise UsageError(f"{problem}; dim must be at least {num_classes - 1}.")
    if not dtype.is_floating_point:
        raise UsageError(f"dtype is {dtype}; a simplex needs a floating-point dtype.")

    vertices = _helmert(num_classes).T * math.sqrt(num_classes / (num_classes - 1))
    if generator is None:
        rows = torch.nn.functional.pad(vertices, (0, dim - num_classes + 1))
    else:
        rows = vertices @ _random_frame(dim, num_classes - 1, generator).T
    return rows.to(dtype=dtype, device=device)


def _helmert(size: int) -> Tensor:
    """Return orthonormal rows (1, ..., 1, -k, 0, ..., 0) / sqrt(k (k + 1)), k = 1 .. size - 1, each with the sum 0.

    Their columns have inner products I - 1/C, so they are the vertices of a simplex in exactly C - 1 coordinates.
    """
    order = torch.arange(1, size, dtype=torch.float64)
    rows = torch.ones(size - 1, size, dtype=torch.float64).tril()
    rows[torch.arange(size - 1), torch.arange(1, size)] = -order
    return rows / (order * (order + 1)).sqrt().unsqueeze(1)


def _random_frame(dim: int, size: int, generator: torch.Generator) -> Tensor:
    """Return random `(dim, size)` orthonormal columns, uniform among all such frames."""
    normal = torch.randn(dim, size, dtype=torch.float64, device=generator.device, generator=generator).cpu()
    frame: Tensor
    triangle: Tensor
    frame, triangle = torch.linalg.qr(normal)
    # The signs that QR leaves on the diagonal of R would bias the draw.
    return frame * triangle.diagonal().sign()
