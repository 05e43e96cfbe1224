"""Intersection over union of each class, and its means over the retained and the forgotten classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["SegmentationScores", "pixel_confusion", "segmentation_scores"]


def pixel_confusion(predicted: Tensor, truth: Tensor, num_classes: int) -> Tensor:
    """Count pixels by true (row) and predicted class (column): (C, C) int64.

    Args:
        predicted: Class indices of any shape.
        truth: True classes of the same shape. Labels outside 0 to C - 1 (void) are ignored.
        num_classes: Number of classes C.

    Example:
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


@dataclass(frozen=True, kw_only=True)
class SegmentationScores:
    """IoU of each class and of the two sides, as fractions."""

    iou: tuple[float | None, ...]
    """TP / (TP + FP + FN) of each class; None for a class that is neither true nor predicted."""
    iou_r: float
    """Mean over the retained classes. Pixels of the forgotten classes are false positives of their predictions."""
    iou_r_rest: float
    """Mean over the retained classes without the pixels of the forgotten classes."""
    iou_f: float
    """Mean over the forgotten classes."""
    accuracy_r: float
    """Share of the retained classes' pixels with the right prediction."""
    becomes: tuple[int, ...]
    """Number of pixels of the forgotten classes with each prediction."""


def segmentation_scores(confusion: Tensor, forgotten: Collection[int]) -> SegmentationScores:
    """Return IoU_r, IoU_f and related scores.

    IoU_c = n_cc / (sum_j n_cj + sum_i n_ic - n_cc), with n_ij the number of pixels of class i with the prediction j.

    Args:
        confusion: Counts of :func:`pixel_confusion`, (C, C).
        forgotten: Forgotten classes, at least one and not all.

    Example:
        >>> counts = torch.tensor([[8, 2, 0], [0, 10, 0], [5, 0, 5]])
        >>> scores = segmentation_scores(counts, [2])
        >>> [round(value, 3) for value in (scores.iou_r, scores.iou_r_rest, scores.iou_f)]
        [0.683, 0.817, 0.5]
    """
    num_classes = len(confusion)
    forget = sorted(set(forgotten))
    if not forget or forget[0] < 0 or forget[-1] >= num_classes or len(forget) == num_classes:
        raise UsageError(f"The forgotten classes must be some, not all, of 0 to {num_classes - 1}, but are {forget}.")
    retain = [label for label in range(num_classes) if label not in forget]
    counts = confusion.double().cpu()
    rest = counts.clone()
    rest[forget] = 0
    iou = _iou(counts)
    right, total = counts.diagonal()[retain].sum(), counts[retain].sum()
    return SegmentationScores(
        iou=tuple(iou),
        iou_r=_mean(iou, retain),
        iou_r_rest=_mean(_iou(rest), retain),
        iou_f=_mean(iou, forget),
        accuracy_r=float(right / total) if float(total) else 0.0,
        becomes=tuple(int(count) for count in confusion[forget].sum(dim=0).tolist()),
    )


def _iou(counts: Tensor) -> list[float | None]:
    hits = counts.diagonal()
    union = counts.sum(dim=0) + counts.sum(dim=1) - hits
    return [float(h / u) if float(u) else None for h, u in zip(hits, union, strict=True)]


def _mean(values: list[float | None], classes: list[int]) -> float:
    present = [value for label in classes if (value := values[label]) is not None]
    return sum(present) / len(present) if present else 0.0
