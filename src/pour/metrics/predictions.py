"""What a model says of forgotten images: how even its retained scores are, its confusions, and how unlike another's."""

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
    """Return the total variation distance of two models' answers, from how often each gave which class.

    It is the share of images that would have to be answered otherwise for the same answers: 0 where both models name
    every class equally often, 1 where they have no answer in common. A model that never saw a class names others for
    its images, and a person who sees these answers can tell whether another model does the same.

    The distance is p(A) - q(A) for the classes A that the first model names more often, and the interval starts from
    that of the difference of the two rates. Because chance has its part in which classes these are, the distance comes
    out too large, the more so the fewer images there are to a class (by 0.05 for 1,000 images and 9 classes, by 0.5 for
    100 images and 99 classes, of two models that answer alike); the lower end is lowered by as much as that may be.
    The models are taken as independent, which for answers to the same images is wide rather than narrow.

    Args:
        counts: how often each class was the answer.
        reference: the same of the other model.

    Example:
        >>> print(answer_distance([0, 80, 20], [0, 60, 40]))
        0.200 [0.066, 0.319]
    """
    if len(counts) != len(reference):
        raise UsageError(f"Answers over {len(counts)} classes cannot be compared with answers over {len(reference)}.")
    totals = [sum(counts), sum(reference)]
    if min(totals) < 1 or min(*counts, *reference) < 0:
        raise UsageError(
            "Answers are compared by their counts, which must not be negative, with one at least on each side."
        )
    more = [
        c for c, (one, other) in enumerate(zip(counts, reference, strict=True)) if one * totals[1] > other * totals[0]
    ]
    ours, theirs = (wilson(sum(side[c] for c in more), n) for side, n in zip((counts, reference), totals, strict=True))
    apart = rate_difference(ours, theirs)
    return Estimate(max(0.0, apart.value), max(0.0, apart.low - _chance_part(counts, reference)), apart.high)


def _chance_part(counts: Sequence[int], reference: Sequence[int]) -> float:
    """How much of the distance of two models' answers may be chance: half the sum of E|d| - |E d| over the classes.

    d, the difference of a class's two shares, is taken as normal, and its mean as near to 0 as its 95 % interval goes,
    where that part is largest.
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

    The forgotten classes' scores are left out before the softmax, so a masked score (-inf) does not matter. With
    p the softmax over the retained scores: entropy H(p) in nats, at most log K, and KL(p || uniform) = log K - H(p),
    0 for a uniform prediction; both are means over the images.

    Args:
        scores: class scores (logits) of forgotten images, shape (n, C).
        classes: the forgotten classes.

    Returns:
        "entropy" and "kl_to_uniform", float64.

    Example:
        >>> {k: round(v.item(), 6) for k, v in retained_uniformity(torch.zeros(5, 4), classes=[0]).items()}
        {'entropy': 1.098612, 'kl_to_uniform': 0.0}
    """
    return uniformity_of_sums(uniformity_sums(scores, class_tuple(classes)))


def confusion_matrix(scores: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Count the answers: entry (i, j) is the number of images of class i that were called class j.

    Args:
        scores: class scores, shape (n, num_classes), or predicted classes, shape (n,), integers.
        labels: true classes, shape (n,).
        num_classes: number of classes C.

    Returns:
        Counts of shape (C, C), int64.

    Example:
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


def uniformity_sums(scores: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return the sums over images of entropy and divergence, and the number of images, shape (3,)."""
    if scores.ndim != 2 or not scores.is_floating_point():
        raise UsageError(f"scores must be floats of shape (n, C), got {scores.dtype} of {tuple(scores.shape)}.")
    if classes[-1] >= scores.shape[1] or len(classes) == scores.shape[1]:
        raise UsageError(
            f"classes {list(classes)} must be some, and not all, of the {scores.shape[1]} classes that have a score."
        )
    entropy = retained_entropies(scores, classes).sum()
    n = entropy.new_tensor(len(scores))
    return torch.stack([entropy, n * log(scores.shape[1] - len(classes)) - entropy, n]).to(scores.device)


def retained_entropies(scores: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return the entropy of each image's softmax over the retained classes, shape (n,), float64."""
    retained = [c for c in range(scores.shape[1]) if c not in classes]
    entropies: Tensor = torch.special.entr(to_float64(scores)[:, retained].softmax(dim=1)).sum(dim=1)
    return entropies


def uniformity_of_sums(sums: Tensor) -> dict[str, Tensor]:
    """Return the means from those sums."""
    entropy, divergence, n = sums
    if int(n) == 0:
        raise UsageError("there are no forgotten images to take the entropy of: give at least one row of scores.")
    if not bool(torch.isfinite(sums).all()):
        raise UsageError("the retained scores hold NaN or infinite values: check the model that produced them.")
    # Rounding can take an exactly uniform prediction below 0.
    return {"entropy": entropy / n, "kl_to_uniform": (divergence / n).clamp(min=0)}
