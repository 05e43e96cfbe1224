"""The classes of a head whose scores make up the mean score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.models.projecting.projected_head import is_masked

if TYPE_CHECKING:
    from collections.abc import Collection

    from pour.models.head import Head

__all__ = ["LiveClasses", "live_classes", "nonzero_rows", "precise"]

# A copy of a large head in float64 would take twice its memory.
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class LiveClasses:
    """Parameters of the classes whose scores make up the mean score, the requested classes among them."""

    weight: Tensor
    """Rows, (C', d)."""
    bias: Tensor
    """Biases, (C',)."""
    requested: list[int]
    """Positions of the requested classes among the live classes."""
    rows: Tensor
    """Centred rows of the requested classes, (k, d), in at least single precision."""
    level: Tensor
    """Centred biases of the requested classes, (k,)."""
    noise: float
    """Largest length of a centred row that rounding alone explains."""


def live_classes(head: Head, classes: tuple[int, ...], earlier: Collection[int]) -> LiveClasses:
    """Return the live classes. Raise UsageError if a requested class has a zero row or the mean row."""
    requested = list(classes)
    nonzero_rows(head, classes)
    weight = head.weight
    bias = torch.zeros_like(weight[:, 0]) if head.bias is None else head.bias
    # The bias of a masked class would dominate the mean of the scores.
    live = ~is_masked(bias)
    # After folding, these classes have a constant score, which is no part of the mean score of later requests.
    live[[label for label in earlier if label < len(weight) and not bool(weight[label].any())]] = False
    live[requested] = True

    distances, longest = _distances_to_mean(weight, live)
    # A weight has the rounding error of its dtype, and the errors of sums in at least single precision.
    wide = torch.promote_types(weight.dtype, torch.float32)
    noise = (2 * torch.finfo(weight.dtype).eps + weight.shape[1] * torch.finfo(wide).eps) * longest
    at_mean = distances <= noise
    for label in requested:
        if at_mean[label]:
            raise _no_direction(label, "the mean of the rows up to rounding")
    live &= ~at_mean.to(live.device)
    if not bool(live.all()):
        weight, bias = weight[live], bias[live]
    weight, bias = precise(weight), precise(bias)
    positions: list[int] = (live.cumsum(dim=0)[requested] - 1).tolist()
    return LiveClasses(
        weight=weight,
        bias=bias,
        requested=positions,
        rows=weight[positions] - weight.mean(dim=0),
        level=bias[positions] - bias.mean(),
        noise=noise,
    )


def _distances_to_mean(weight: Tensor, live: Tensor) -> tuple[Tensor, float]:
    """Return the distance of every row from the mean of the live rows, and the length of the longest live row."""
    parts = list(zip(torch.split(weight, _ROWS_AT_ONCE), torch.split(live, _ROWS_AT_ONCE), strict=True))
    mean = torch.stack([as_double(rows[alive]).sum(dim=0) for rows, alive in parts]).sum(dim=0) / int(live.sum())
    distances = torch.cat([torch.linalg.vector_norm(as_double(rows) - mean, dim=1) for rows, _ in parts])
    lengths = torch.cat([torch.linalg.vector_norm(as_double(rows[alive]), dim=1) for rows, alive in parts])
    return distances, float(lengths.max())


def nonzero_rows(head: Head, classes: tuple[int, ...]) -> Tensor:
    """Return the rows of `classes`. Raise UsageError if a row is zero."""
    rows = head.weight[list(classes)]
    for label, row in zip(classes, rows, strict=True):
        if not bool(row.any()):
            raise _no_direction(label, "zero")
    return rows


def _no_direction(label: int, value: str) -> UsageError:
    return UsageError(
        f"The head's row for class {label} is {value}, so it has no direction; if an earlier request forgot the class, "
        "leave it out of the request."
    )


def precise(values: Tensor) -> Tensor:
    """Return the values in at least single precision."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
