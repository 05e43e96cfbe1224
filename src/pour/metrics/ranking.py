"""The area under the ROC curve, by ranks."""

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import to_float64

__all__ = ["roc_auc"]


def roc_auc(positive: Tensor, negative: Tensor) -> float:
    """Return the share of pairs in which the positive sample has the higher score. A tie counts as one half.

    This is the area under the ROC curve, (Mann-Whitney's U) / (m n).

    Args:
        positive: Scores of the positive samples, (m,).
        negative: Scores of the negative samples, (n,).

    Examples:
        >>> roc_auc(torch.tensor([2.0, 3.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    positive, negative = to_float64(positive).flatten(), to_float64(negative).flatten()
    if len(positive) == 0 or len(negative) == 0:
        raise UsageError(
            f"the area under the ROC curve needs samples of both kinds, "
            f"got {len(positive)} positives and {len(negative)} negatives."
        )
    if bool(torch.isnan(positive).any() | torch.isnan(negative).any()):
        raise UsageError("the scores to rank contain NaN values: check the model that produced them.")
    ordered = negative.sort().values
    below = torch.searchsorted(ordered, positive, right=False)
    not_above = torch.searchsorted(ordered, positive, right=True)
    # Whole numbers, so that the area is exact up to the last division.
    doubled = int((below + not_above).sum())
    return doubled / (2 * len(positive) * len(negative))
