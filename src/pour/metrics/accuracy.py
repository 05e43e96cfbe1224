"""Accuracy on the retained and on the forgotten classes, from scores or predictions."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import check_labels, class_tuple, is_forgotten

__all__ = ["split_accuracy"]


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
    return right_shares(*count_right(scores, labels, class_tuple(classes)))


def count_right(scores: Tensor, labels: Tensor, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return right answers and images on the retained and on the forgotten classes, each of shape (2,)."""
    labels = check_labels(labels, scores, "labels")
    right = predicted_classes(scores) == labels
    forgotten = is_forgotten(labels, classes)
    sides = torch.stack([~forgotten, forgotten])
    return (sides & right).sum(dim=1), sides.sum(dim=1)


def right_shares(correct: Tensor, total: Tensor) -> dict[str, Tensor]:
    """Return the share of right answers by side; a side without images is left out."""
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
