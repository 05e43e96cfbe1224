"""The norm leak: the length of the features alone can show the forgotten class."""

import torch
from torch import Tensor

from pour.geometry._inputs import double_blocks
from pour.metrics._inputs import finite_rows
from pour.metrics.intervals import Estimate, auc_estimate
from pour.metrics.ranking import roc_auc

__all__ = ["norm_leak"]


def norm_leak(forget_features: Tensor, retain_features: Tensor) -> Estimate:
    """Return max(A, 1 - A), with A the area under the ROC curve of |z| for forgotten against retained images.

    It is the area for an attacker who knows which side has the longer features, so it is at least 0.5. For constant
    norms it is exactly 0.5. The interval comes from `auc_estimate`.

    Args:
        forget_features: Features of forgotten images, (m, d).
        retain_features: Features of retained images, (n, d).

    Examples:
        >>> norm_leak(torch.ones(30, 4) * 0.1, torch.randn(60, 4) + 5).value
        1.0
    """
    forget, retain = _norms(forget_features, "forget_features"), _norms(retain_features, "retain_features")
    area = roc_auc(forget, retain)
    estimate = auc_estimate(max(area, 1 - area), len(forget), len(retain))
    return Estimate(estimate.value, max(0.5, estimate.low), estimate.high)


def _norms(features: Tensor, name: str) -> Tensor:
    return torch.cat([torch.linalg.vector_norm(block, dim=1) for block in double_blocks(finite_rows(features, name))])
