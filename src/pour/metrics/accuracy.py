"""Accuracy on the retained and on the forgotten classes, from scores or predictions."""

from collections.abc import Iterable

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import check_labels, class_tuple, is_forgotten

__all__ = ["split_accuracy"]


def split_accuracy(scores: Tensor, labels: Tensor, *, classes: int | Iterable[int]) -> dict[str, Tensor]:
    """Return the accuracy on the retained and on the forgotten classes of one split.

    On the test split they are the paper's Acc_r and Acc_f, on training images without augmentation Acc_tr and Acc_tf.
    The prediction is the argmax over all classes, the forgotten ones included.

    Args:
        scores: Class scores (n, C), or predicted classes (n,) as integers.
        labels: True classes, (n,).
        classes: Forgotten classes.

    Returns:
        Fractions under "retain" and "forget" in float64. A side without images is absent.

    Examples:
        >>> split_accuracy(torch.tensor([0, 1, 2, 1]), torch.tensor([0, 1, 2, 2]), classes=[0])
        {'retain': tensor(0.6667, dtype=torch.float64), 'forget': tensor(1., dtype=torch.float64)}
    """
    labels = check_labels(labels, scores, "labels")
    right = predicted_classes(scores) == labels
    forgotten = is_forgotten(labels, class_tuple(classes))
    sides = {"retain": ~forgotten, "forget": forgotten}
    return {name: right[side].sum().double() / side.sum() for name, side in sides.items() if bool(side.any())}


def predicted_classes(scores: Tensor) -> Tensor:
    """Return the argmax of scores (n, C), or predictions (n,) unchanged."""
    if scores.ndim == 1 and not scores.is_floating_point():
        return scores
    if scores.ndim != 2 or not scores.is_floating_point():
        raise UsageError(
            f"scores must be floats of shape (n, C) or predicted classes of shape (n,), "
            f"got {scores.dtype} of shape {tuple(scores.shape)}."
        )
    # argmax returns a class for a row of NaN, so that a diverged model would get an accuracy.
    if bool(torch.isnan(scores).any()):
        raise UsageError("scores contain NaN values: check the model that produced them.")
    return scores.argmax(dim=1)
