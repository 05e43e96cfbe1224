"""The norm leak: the length of the features alone can show the forgotten class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pour.metrics._inputs import finite_rows
from pour.metrics.intervals import Estimate, auc_estimate
from pour.metrics.ranking import roc_auc

__all__ = ["NormLeak", "norm_leak"]


@dataclass(frozen=True, slots=True)
class NormLeak:
    """Separation of forgotten and retained images by the norm of their features."""

    auc: Estimate
    """Probability that a forgotten image has the longer features; 0.5 means that norms contain no information."""
    leak: Estimate
    """max(auc, 1 - auc), the area for an attacker who knows the sign; at least 0.5."""
    mean_forget: float
    """Mean norm of the forgotten images' features."""
    mean_retain: float
    """Mean norm of the retained images' features."""


def norm_leak(forget_features: Tensor, retain_features: Tensor) -> NormLeak:
    """Return the area under the ROC curve of |z| for forgotten against retained images.

    Constant norms give 0.5 exactly. The intervals are those of `auc_estimate`.

    Args:
        forget_features: Features of forgotten images, (m, d).
        retain_features: Features of retained images, (n, d).

    Example:
        >>> leak = norm_leak(torch.ones(30, 4) * 0.1, torch.randn(60, 4) + 5)
        >>> leak.auc.value, leak.leak.value
        (0.0, 1.0)
    """
    forget = torch.linalg.vector_norm(finite_rows(forget_features, "forget_features"), dim=1)
    retain = torch.linalg.vector_norm(finite_rows(retain_features, "retain_features"), dim=1)
    auc = auc_estimate(roc_auc(forget, retain), len(forget), len(retain))
    if auc.value >= 0.5:
        leak = Estimate(auc.value, max(0.5, auc.low), auc.high)
    else:
        leak = Estimate(1 - auc.value, max(0.5, 1 - auc.high), 1 - auc.low)
    return NormLeak(auc, leak, float(forget.mean()), float(retain.mean()))
