"""Checks of tensors, and their conversion to float64, for all functions of this package."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

__all__ = [
    "as_double",
    "as_labels",
    "as_mask",
    "as_samples",
    "check_directions",
    "check_features",
    "check_samples",
    "double_blocks",
    "grouped_blocks",
    "sum_rows",
    "without_autocast",
]

# Rows per block: few on a CPU, whose cache should contain the block in float64, and more on a GPU.
_CPU_BLOCK = 1024
_BLOCK = 8192


def as_double(tensor: Tensor) -> Tensor:
    """Return `tensor` in float64 and outside the autograd graph, on the CPU if its device has no float64."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def double_blocks(rows: Tensor) -> Iterator[Tensor]:
    """Yield rows in blocks in float64, so that there is never a copy of all of them.

    Example:
        >>> [block.dtype for block in double_blocks(torch.zeros(3, 2))]
        [torch.float64]
    """
    for block in torch.split(rows, _CPU_BLOCK if rows.device.type == "cpu" else _BLOCK):
        yield as_double(block)


def grouped_blocks(rows: Tensor, groups: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield rows in blocks in float64, each with the groups of its rows, `(n,)` integers or booleans."""
    start = 0
    for block in double_blocks(rows):
        yield block, groups[start : start + len(block)]
        start += len(block)


def sum_rows(rows: Tensor, *, index: Tensor | None = None, count: int = 1) -> Tensor:
    """Return the sums of the rows of each group in float64, `(count, d)`.

    Args:
        rows: `(n, d)`.
        index: Group of each row, `(n,)`; by default all rows are in group 0.
        count: Number of groups.
    """
    index = torch.zeros(len(rows), dtype=torch.int64, device=rows.device) if index is None else index
    sums = index.new_zeros(count, rows.shape[1], dtype=torch.float64)
    for block, groups in grouped_blocks(rows, index):
        sums.index_add_(0, groups, block)
    return sums


def check_samples(samples: Tensor, name: str) -> Tensor:
    """Return `samples` outside the autograd graph, on the CPU if their device has no float64.

    Raise UsageError unless they are an `(n, d)` matrix of finite numbers.
    """
    if samples.ndim != 2 or 0 in samples.shape:
        raise UsageError(f"{name} has shape {tuple(samples.shape)}; expected (n, d) with at least one row.")
    if not samples.is_floating_point():
        raise UsageError(f"{name} has dtype {samples.dtype}; convert it to a floating-point dtype.")
    samples = samples.detach()
    rows = samples.cpu() if samples.device.type == "mps" else samples
    if not all(bool(torch.isfinite(block).all()) for block in double_blocks(rows)):
        raise UsageError(f"{name} contains NaN or infinite values; remove those rows first.")
    return rows


def as_samples(samples: Tensor, name: str) -> Tensor:
    """Return `samples` in float64. Raise UsageError unless they are an `(n, d)` matrix of finite numbers."""
    return as_double(check_samples(samples, name))


def as_labels(labels: Tensor, samples: Tensor) -> Tensor:
    """Return the labels as int64 on the device of `samples`. Raise UsageError unless each row has one integer."""
    if labels.shape != samples.shape[:-1]:
        problem = f"labels have shape {tuple(labels.shape)}"
        raise UsageError(f"{problem}; expected {tuple(samples.shape[:-1])}, one per row of features.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UsageError(f"labels have dtype {labels.dtype}; expected class indices of an integer dtype.")
    return labels.to(device=samples.device, dtype=torch.int64)


def as_mask(mask: Tensor, rows: Tensor, name: str) -> Tensor:
    """Return the mask on the device of `rows`. Raise UsageError unless it has one boolean per row."""
    if mask.dtype != torch.bool or mask.shape != rows.shape[:1]:
        raise UsageError(
            f"{name} is {mask.dtype} of shape {tuple(mask.shape)}; expected booleans of shape ({len(rows)},): "
            "whether the predicted class is a forgotten one."
        )
    return mask.to(rows.device)


def check_directions(rows: Tensor, name: str) -> None:
    """Raise UsageError unless `rows` are a `(k, d)` matrix of finite numbers without zero rows."""
    if not rows.is_floating_point():
        raise UsageError(f"{name} has dtype {rows.dtype}; convert it to a floating-point dtype.")
    if rows.ndim != 2 or 0 in rows.shape:
        raise UsageError(f"{name} has shape {tuple(rows.shape)}; expected (k, d) with at least one row.")
    if not bool(torch.isfinite(rows).all()):
        raise UsageError(f"{name} contains NaN or infinite values; a direction must be finite.")
    zero_rows: list[int] = (rows == 0).all(dim=1).nonzero().flatten().tolist()
    if zero_rows:
        listed = ", ".join(map(str, zero_rows))
        raise UsageError(f"{name} is zero in row {listed}; a direction must have a length.")


def check_features(features: Tensor, dim: int, width: int, name: str) -> None:
    """Raise UsageError unless dimension `dim` of `features` has the width of the map called `name`."""
    if not features.is_floating_point():
        raise UsageError(f"features have dtype {features.dtype}; convert them to a floating-point dtype.")
    if not -features.ndim <= dim < features.ndim:
        raise UsageError(f"features of {features.ndim} dimensions have no dimension {dim}.")
    if features.shape[dim] != width:
        problem = f"features have width {features.shape[dim]} in dimension {dim}, the {name} was made for {width}"
        raise UsageError(f"{problem}; pass features of that width, or another dim.")


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context without autocast: its half-precision products would leave about 1 % of a removed direction."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
