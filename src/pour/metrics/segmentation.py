"""Intersection over union of each class, and its means over the retained and the forgotten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["class_iou", "pixel_confusion", "segmentation_scores"]


def pixel_confusion(predicted: Tensor, truth: Tensor, num_classes: int) -> Tensor:
    """Return the number of pixels by true (row) and predicted class (column), (C, C) int64.

    Args:
        predicted: Class indices of any shape.
        truth: True classes of the same shape. Labels outside 0 to C - 1 (void) are ignored.
        num_classes: Number of classes C.

    Examples:
        >>> pixel_confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, -100]), 2)
        tensor([[1, 1],
                [0, 0]])
    """
    if predicted.shape != truth.shape:
        raise UsageError(f"Predictions of shape {tuple(predicted.shape)} do not fit truth of {tuple(truth.shape)}.")
    # An additional bin counts the void pixels: selecting the others would wait for their number on a GPU.
    counted = (truth >= 0) & (truth < num_classes)
    index = torch.where(counted, truth.long() * num_classes + predicted.long(), num_classes**2)
    return torch.bincount(index.flatten(), minlength=num_classes**2 + 1)[:-1].view(num_classes, num_classes)


def class_iou(counts: Tensor) -> Tensor:
    """Return TP / (TP + FP + FN) of each class, (..., C); NaN for a class that is neither true nor predicted.

    With n_ij the number of pixels of class i with the prediction j, it is n_cc / (sum_j n_cj + sum_i n_ic - n_cc).

    Args:
        counts: Counts of `pixel_confusion`, (..., C, C).
    """
    hits = counts.diagonal(dim1=-2, dim2=-1)
    return hits / (counts.sum(dim=-1) + counts.sum(dim=-2) - hits)


def segmentation_scores(counts: Tensor, forgotten: Collection[int]) -> dict[str, Tensor]:
    """Return the IoU of each class and its means over the retained and the forgotten classes.

    Args:
        counts: Counts of `pixel_confusion`, (..., C, C).
        forgotten: Forgotten classes, at least one and not all.

    Returns:
        `iou`, (..., C), see `class_iou`. `iou_r`, the mean over the retained classes, in which pixels of the
        forgotten classes are false positives of their predictions. `iou_r_rest`, the same without the pixels of the
        forgotten classes. `iou_f`, the mean over the forgotten classes. Each is NaN if no class has an IoU.

    Examples:
        >>> counts = torch.tensor([[8, 2, 0], [0, 10, 0], [5, 0, 5]])
        >>> scores = segmentation_scores(counts, [2])
        >>> [round(float(scores[name]), 3) for name in ("iou_r", "iou_r_rest", "iou_f")]
        [0.683, 0.817, 0.5]
    """
    num_classes = counts.shape[-1]
    forget = sorted(set(forgotten))
    if not forget or forget[0] < 0 or forget[-1] >= num_classes or len(forget) == num_classes:
        raise UsageError(f"The forgotten classes must be some, not all, of 0 to {num_classes - 1}, but are {forget}.")
    retain = [label for label in range(num_classes) if label not in forget]
    rest = counts.clone()
    rest[..., forget, :] = 0
    iou = class_iou(counts)
    return {
        "iou": iou,
        "iou_r": iou[..., retain].nanmean(dim=-1),
        "iou_r_rest": class_iou(rest)[..., retain].nanmean(dim=-1),
        "iou_f": iou[..., forget].nanmean(dim=-1),
    }
