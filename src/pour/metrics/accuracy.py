"""Accuracy on the retained and on the forgotten classes, from scores or predictions."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from pour._metric import Metric
from pour.errors import UsageError
from pour.metrics._inputs import check_labels, class_tuple, is_forgotten

__all__ = ["SplitAccuracy", "split_accuracy"]


def split_accuracy(scores: Tensor, labels: Tensor, *, classes: int | Iterable[int]) -> dict[str, Tensor]:
    """Return the accuracy on the retained and on the forgotten classes of one split.

    On the test split the two are the paper's Acc_r and Acc_f, on un-augmented training images Acc_tr and Acc_tf. The
    prediction is the argmax over all classes, the forgotten ones included.

    Args:
        scores: class scores, shape (n, C), or predicted classes, shape (n,), integers.
        labels: true classes, shape (n,).
        classes: the forgotten classes.

    Returns:
        Fractions under "retain" and "forget", float64; a side without images is left out.

    Example:
        >>> split_accuracy(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 2, 2]), classes=[0])
        {'retain': tensor(0.6667, dtype=torch.float64), 'forget': tensor(1., dtype=torch.float64)}
    """
    return _compute(*_update(scores, labels, class_tuple(classes)))


class SplitAccuracy(Metric):
    """The streaming form of `split_accuracy`; it reduces over processes.

    Args:
        classes: the forgotten classes.
        kwargs: passed on to `torchmetrics.Metric`.

    Example:
        >>> metric = SplitAccuracy(classes=[0])
        >>> metric.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
        >>> metric.update(torch.tensor([2, 1]), torch.tensor([2, 2]))
        >>> metric.compute()
        {'retain': tensor(0.6667, dtype=torch.float64), 'forget': tensor(1., dtype=torch.float64)}
    """

    is_differentiable = False
    full_state_update = False

    correct: Tensor
    """Right answers on retained and forgotten classes, shape (2,)."""
    total: Tensor
    """Images of retained and forgotten classes, shape (2,)."""

    def __init__(self, classes: int | Iterable[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classes = class_tuple(classes)
        self.add_state("correct", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(2, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Add a batch of scores (n, C) or predictions (n,) with its labels (n,)."""
        correct, total = _update(scores, labels, self.classes)
        self.correct = self.correct + correct
        self.total = self.total + total

    def compute(self) -> dict[str, Tensor]:
        """Return the fractions under "retain" and "forget"; a side without images is left out."""
        return _compute(self.correct, self.total)


def _update(scores: Tensor, labels: Tensor, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    right = predicted_classes(scores) == check_labels(labels, scores, "labels")
    forgotten = is_forgotten(labels.to(scores.device), classes)
    sides = torch.stack([~forgotten, forgotten])
    return (sides & right).sum(dim=1), sides.sum(dim=1)


def _compute(correct: Tensor, total: Tensor) -> dict[str, Tensor]:
    return {
        name: correct[side].double() / total[side]
        for side, name in enumerate(("retain", "forget"))
        if int(total[side]) > 0
    }


def predicted_classes(scores: Tensor) -> Tensor:
    """Return the argmax of scores (n, C), or predictions (n,) as they are."""
    if scores.ndim == 1 and not scores.is_floating_point():
        return scores
    if scores.ndim != 2 or not scores.is_floating_point():
        raise UsageError(
            f"scores must be floats of shape (n, C) or predicted classes of shape (n,), "
            f"got {scores.dtype} of shape {tuple(scores.shape)}."
        )
    # argmax would name a class for a row of NaN, and a diverged model would get an accuracy.
    if bool(torch.isnan(scores).any()):
        raise UsageError("scores hold NaN values: check the model that produced them.")
    return scores.argmax(dim=1)
