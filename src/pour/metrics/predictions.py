"""Answers to forgotten images: their entropy, their confusion matrix, and their distance to another model's answers."""

from collections.abc import Iterable, Sequence
from math import erf, exp, log, pi, sqrt

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import check_labels, class_tuple, to_float64
from pour.metrics.accuracy import predicted_classes
from pour.metrics.intervals import Z95, Estimate, rate_difference, wilson

__all__ = ["answer_distance", "confusion_matrix", "retained_uniformity"]


def answer_distance(counts: Sequence[int], reference: Sequence[int]) -> Estimate:
    """Return the total variation distance of two models' answers, from the number of times each class is the answer.

    It is the share of images whose answers would have to change for equal counts: 0 if both models answer each class
    equally often, 1 if they have no answer in common. A model that was trained without a class answers its images with
    other classes. Anyone with access to these answers can compare them with the answers of another model.

    The distance is p(A) - q(A) for the classes A that the first model answers more often. The interval starts from the
    interval of the difference of these two rates. Chance decides in part which classes are in A, so the distance is too
    large, and more so for fewer images per class. For two models with equal answers it is too large by 0.05 for 1,000
    images and 9 classes, and by 0.5 for 100 images and 99 classes. The lower end is lowered by the largest such error.
    The models count as independent. For answers to the same images this makes the interval too wide, not too narrow.

    Args:
        counts: Number of times that each class is the answer.
        reference: Numbers of the other model.

    Examples:
        >>> print(answer_distance([0, 80, 20], [0, 60, 40]))
        0.200 [0.066, 0.319]
    """
    if len(counts) != len(reference):
        raise UsageError(f"Answers over {len(counts)} classes cannot be compared with answers over {len(reference)}.")
    n, m = sum(counts), sum(reference)
    if min(n, m) < 1 or min(*counts, *reference) < 0:
        raise UsageError(
            "Counts of answers must not be negative, and each model needs at least one answer; pass other counts."
        )
    more_often = [c for c, (one, other) in enumerate(zip(counts, reference, strict=True)) if one * m > other * n]
    rates = [wilson(sum(side[c] for c in more_often), total) for side, total in ((counts, n), (reference, m))]
    distance = rate_difference(*rates)
    return Estimate(max(0.0, distance.value), max(0.0, distance.low - _chance_part(counts, reference)), distance.high)


def _chance_part(counts: Sequence[int], reference: Sequence[int]) -> float:
    """Return the largest part of the distance that may be chance: half the sum of E|d| - |E d| over the classes.

    The difference d of a class's two shares is assumed to be normal. Its mean is the value in its 95 % interval that is
    nearest to 0, at which this part is largest.
    """
    total = 0.0
    for one, other in zip(counts, reference, strict=True):
        p, q = one / sum(counts), other / sum(reference)
        deviation = sqrt(p * (1 - p) / sum(counts) + q * (1 - q) / sum(reference))
        if deviation > 0:
            least = max(0.0, abs(p - q) / deviation - Z95)
            folded = sqrt(2 / pi) * exp(-(least**2) / 2) + least * erf(least / sqrt(2))
            total += deviation * (folded - least)
    return total / 2


def retained_uniformity(scores: Tensor, *, classes: int | Iterable[int]) -> dict[str, Tensor]:
    """Return how close the predictions on forgotten images are to uniform over the K retained classes.

    p is the softmax over the retained scores alone, so a masked score (-inf) does not matter. The entropy H(p) in nats
    is at most log K. KL(p || uniform) = log K - H(p) is 0 for a uniform prediction. Both are means over the images.

    Args:
        scores: Class scores (logits) of forgotten images, (n, C).
        classes: Forgotten classes.

    Returns:
        "entropy" and "kl_to_uniform" in float64.

    Examples:
        >>> {k: round(v.item(), 6) for k, v in retained_uniformity(torch.zeros(5, 4), classes=[0]).items()}
        {'entropy': 1.098612, 'kl_to_uniform': 0.0}
    """
    forgotten = class_tuple(classes)
    if scores.ndim != 2 or not scores.is_floating_point():
        raise UsageError(f"scores must be floats of shape (n, C), got {scores.dtype} of {tuple(scores.shape)}.")
    if forgotten[-1] >= scores.shape[1] or len(forgotten) == scores.shape[1]:
        raise UsageError(
            f"classes {list(forgotten)} must be some, and not all, of the {scores.shape[1]} classes that have a score."
        )
    if len(scores) == 0:
        raise UsageError("there are no forgotten images to take the entropy of: pass at least one row of scores.")
    entropy = retained_entropies(scores, forgotten).mean()
    if not bool(torch.isfinite(entropy)):
        raise UsageError("the retained scores contain NaN or infinite values: check the model that produced them.")
    # Rounding can make an exactly uniform prediction negative.
    return {"entropy": entropy, "kl_to_uniform": (log(scores.shape[1] - len(forgotten)) - entropy).clamp(min=0)}


def retained_entropies(scores: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return the entropy of each image's softmax over the retained classes, (n,) in float64."""
    retained = [c for c in range(scores.shape[1]) if c not in classes]
    entropies: Tensor = torch.special.entr(to_float64(scores)[:, retained].softmax(dim=1)).sum(dim=1)
    return entropies


def confusion_matrix(scores: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the counts of answers: entry (i, j) is the number of images of class i with the answer j.

    Args:
        scores: Class scores (n, num_classes), or predicted classes (n,) as integers.
        labels: True classes, (n,).
        num_classes: Number of classes C.

    Returns:
        Counts as integers, (C, C).

    Examples:
        >>> confusion_matrix(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 1]), num_classes=2)
        tensor([[1, 1],
                [0, 1]])
    """
    predicted = predicted_classes(scores)
    labels = check_labels(labels, scores, "labels")
    for name, values in (("labels", labels), ("predictions", predicted)):
        if len(values) and (int(values.min()) < 0 or int(values.max()) >= num_classes):
            raise UsageError(
                f"{name} run from {int(values.min())} to {int(values.max())}, "
                f"outside the {num_classes} classes 0 to {num_classes - 1}."
            )
    counts = torch.bincount(labels * num_classes + predicted.long(), minlength=num_classes**2)
    return counts.view(num_classes, num_classes)
