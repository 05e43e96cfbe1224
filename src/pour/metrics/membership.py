"""rMIA: a linear attack that identifies training images of the forgotten class by their features."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import class_tuple, is_forgotten, two_splits
from pour.metrics._sampling import stratified_folds, stratified_sample
from pour.metrics.intervals import Estimate, auc_estimate, balanced_accuracy, wilson
from pour.metrics.logistic import logistic_regression
from pour.metrics.ranking import roc_auc

__all__ = ["Membership", "rmia"]


@dataclass(frozen=True, slots=True)
class Membership:
    """Result of the membership attack on images of the forgotten classes; rates with 95 % intervals."""

    tpr: Estimate
    """Share of held-out training images called members, the paper's rMIA. Compare it with `fpr`, not with 0.5."""
    fpr: Estimate
    """Share of held-out test images called members."""
    balanced_accuracy: Estimate
    """(tpr + 1 - fpr) / 2; 0.5 means that the attack learns nothing."""
    auc: Estimate
    """Area under the ROC curve of the attack's scores, compared within folds."""
    members: int
    """Number of attacked training images of the forgotten classes, after the reduction to the test split's size."""
    others: int
    """Number of attacked test images of the forgotten classes."""


def rmia(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int | Iterable[int],
    folds: int = 5,
    C: float = 1.0,
    seed: int = 0,
) -> Membership:
    """Run the paper's five-fold linear membership attack on features.

    Training samples of all classes are reduced to the number of test samples, stratified by class. The features are
    standardised. Folds are stratified by class and membership. A class-balanced logistic regression learns to
    distinguish training from test samples on four folds, and predicts the membership of the images of the forgotten
    classes in the fifth. Every such image is predicted once. The rates are over all these images, which is the mean
    over folds of equal size. Intervals: Wilson for the rates, Newcombe for the balanced accuracy, `auc_estimate` for
    the area.

    Args:
        train_features: Features of un-augmented training images of all classes, (n, d).
        train_labels: Classes of the training images, (n,).
        test_features: Features of test images of all classes, (m, d).
        test_labels: Classes of the test images, (m,).
        classes: Forgotten classes.
        folds: Number of folds.
        C: Inverse strength of the attack's regularisation.
        seed: Seed of the reduction and of the folds.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(200) % 2
        >>> result = rmia(torch.randn(200, 3) + 9, labels, torch.randn(200, 3), labels, classes=[0])
        >>> result.tpr.value, result.fpr.value
        (1.0, 0.0)
    """
    if folds < 2:
        raise UsageError(f"the attack needs at least 2 folds, got {folds}.")
    train, train_labels, test, test_labels = two_splits(train_features, train_labels, test_features, test_labels)
    forgotten = class_tuple(classes)
    generator = torch.Generator().manual_seed(seed)
    keep = stratified_sample(train_labels, len(test), generator)
    labels = torch.cat([train_labels[keep], test_labels])
    member = torch.arange(len(labels), device=train.device) < len(keep)
    attacked = is_forgotten(labels, forgotten)
    for name, count in (("training", int((attacked & member).sum())), ("test", int((attacked & ~member).sum()))):
        if count < folds:
            raise UsageError(
                f"the attack needs at least {folds} {name} images of the forgotten classes {list(forgotten)}, "
                f"one per fold, got {count}."
            )

    # The strata of the forgotten classes have neighbouring numbers, so that every fold gets some of their samples.
    span = int(labels.max()) - int(labels.min()) + 1
    strata = labels + span * ((~attacked).long() + 2 * member.long())
    fold = stratified_folds(strata, folds, generator)
    x = torch.cat([train[keep], test])
    learns = fold.unsqueeze(1) != torch.arange(folds, device=x.device)
    fit = logistic_regression(x, member, include=learns, C=C, standardised=True)
    scores = fit.decision(x[attacked]).gather(1, fold[attacked].unsqueeze(1)).squeeze(1)

    member, fold = member[attacked], fold[attacked]
    called = scores > 0
    tpr = wilson(int(called[member].sum()), int(member.sum()))
    fpr = wilson(int(called[~member].sum()), int((~member).sum()))
    auc = auc_estimate(_auc_within_folds(scores, member, fold, folds), int(member.sum()), int((~member).sum()))
    return Membership(tpr, fpr, balanced_accuracy(tpr, fpr), auc, int(member.sum()), int((~member).sum()))


def _auc_within_folds(scores: Tensor, member: Tensor, fold: Tensor, folds: int) -> float:
    """Return the share of (member, other) pairs of one fold in the right order.

    Scores of different folds are not compared, because they come from different fits.
    """
    right, pairs = 0.0, 0
    for k in range(folds):
        inside, outside = scores[(fold == k) & member], scores[(fold == k) & ~member]
        count = len(inside) * len(outside)
        right += roc_auc(inside, outside) * count
        pairs += count
    return min(1.0, right / pairs)
