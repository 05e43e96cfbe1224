"""What every measure in this room asks of the tensors it is given."""

from __future__ import annotations

import torch
from torch import Tensor

from pour.errors import UsageError

__all__ = ["as_double", "as_labels", "as_samples"]


def as_double(tensor: Tensor) -> Tensor:
    """Give ``tensor`` in float64 and outside the autograd graph, on the CPU where the device has no float64."""
    tensor = tensor.detach()
    return (tensor.cpu() if tensor.device.type == "mps" else tensor).to(torch.float64)


def as_samples(samples: Tensor, name: str) -> Tensor:
    """Check an ``(n, d)`` matrix of finite floating-point rows, n >= 1, and give it in float64."""
    if samples.ndim != 2 or 0 in samples.shape:
        raise UsageError(f"{name} has shape {tuple(samples.shape)}; expected (n, d) with at least one row.")
    if not samples.is_floating_point():
        raise UsageError(f"{name} has dtype {samples.dtype}; convert it to a floating-point dtype.")
    double = as_double(samples)
    if not bool(torch.isfinite(double).all()):
        raise UsageError(f"{name} holds NaN or infinite values; remove those rows first.")
    return double


def as_labels(labels: Tensor, samples: Tensor) -> Tensor:
    """Check one integer label per row of ``samples`` and give the labels as int64 on its device."""
    if labels.shape != samples.shape[:-1]:
        raise UsageError(
            f"labels have shape {tuple(labels.shape)}; expected {tuple(samples.shape[:-1])}, one per row of features."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise UsageError(f"labels have dtype {labels.dtype}; expected class indices of an integer dtype.")
    return labels.to(device=samples.device, dtype=torch.int64)
