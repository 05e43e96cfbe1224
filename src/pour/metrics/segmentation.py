"""Intersection over union: how well each class is segmented, and what forgetting leaves of it."""

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
        predicted: class indices of any shape.
        truth: the same shape; labels outside 0 to C - 1 (void) count for nothing.
        num_classes: C.

    Example:
        >>> pixel_confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, -100]), 2)
        tensor([[1, 1],
                [0, 0]])
    """
    if predicted.shape != truth.shape:
        raise UsageError(f"Predictions of shape {tuple(predicted.shape)} do not fit truth of {tuple(truth.shape)}.")
    # One bin more takes the pixels that do not count, so that nothing waits for the number of those that do.
    counted = (truth >= 0) & (truth < num_classes)
    index = torch.where(counted, truth.long() * num_classes + predicted.long(), num_classes**2)
    return torch.bincount(index.flatten(), minlength=num_classes**2 + 1)[:-1].view(num_classes, num_classes)


@dataclass(frozen=True, kw_only=True)
class SegmentationScores:
    """IoU of each class and of the two sides; shares, not percents."""

    iou: tuple[float | None, ...]
    """TP / (TP + FP + FN) of each class over all pixels that count; None for a class that is neither true nor given."""
    iou_r: float
    """Mean over the retained classes; pixels of the forgotten classes are false positives of whatever they become."""
    iou_r_rest: float
    """The same with the pixels of the forgotten classes left out."""
    iou_f: float
    """Mean over the forgotten classes."""
    accuracy_r: float
    """Share of the retained classes' pixels that are right."""
    becomes: tuple[int, ...]
    """How many pixels of the forgotten classes are given to each class."""


def segmentation_scores(confusion: Tensor, forgotten: Collection[int]) -> SegmentationScores:
    """Return IoU_r, IoU_f and what belongs to them.

    IoU_c = n_cc / (sum_j n_cj + sum_i n_ic - n_cc), with n_ij the pixels of class i that are given to class j.

    Args:
        confusion: (C, C) from :func:`pixel_confusion`.
        forgotten: the forgotten classes; at least one, and not all.

    Example:
        >>> counts = torch.tensor([[8, 2, 0], [0, 10, 0], [5, 0, 5]])
        >>> scores = segmentation_scores(counts, [2])
        >>> [round(value, 3) for value in (scores.iou_r, scores.iou_r_rest, scores.iou_f)]
        [0.683, 0.817, 0.5]
    """
    num_classes = len(confusion)
    gone = sorted(set(forgotten))
    if not gone or gone[0] < 0 or gone[-1] >= num_classes or len(gone) == num_classes:
        raise UsageError(f"The forgotten classes must be some, not all, of 0 to {num_classes - 1}, but are {gone}.")
    kept = [label for label in range(num_classes) if label not in gone]
    counts = confusion.double().cpu()
    rest = counts.clone()
    rest[gone] = 0
    iou, iou_rest = _iou(counts), _iou(rest)
    diagonal, total = counts.diagonal()[kept].sum(), counts[kept].sum()
    return SegmentationScores(
        iou=tuple(iou),
        iou_r=_mean(iou, kept),
        iou_r_rest=_mean(iou_rest, kept),
        iou_f=_mean(iou, gone),
        accuracy_r=float(diagonal / total) if float(total) else 0.0,
        becomes=tuple(int(count) for count in confusion[gone].sum(dim=0).tolist()),
    )


def _iou(counts: Tensor) -> list[float | None]:
    hits = counts.diagonal()
    union = counts.sum(dim=0) + counts.sum(dim=1) - hits
    return [float(h / u) if float(u) else None for h, u in zip(hits, union, strict=True)]


def _mean(values: list[float | None], classes: list[int]) -> float:
    found = [value for label in classes if (value := values[label]) is not None]
    return sum(found) / len(found) if found else 0.0
