"""Probes: how well a new linear classifier or the nearest neighbours recognise the forgotten class in features."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import sum_rows
from pour.metrics._inputs import class_tuple, is_forgotten, two_splits
from pour.metrics._sampling import stratified_sample
from pour.metrics.intervals import Estimate, balanced_accuracy, wilson
from pour.metrics.logistic import logistic_regression

__all__ = ["Probe", "knn_probe", "linear_probe"]

# Number of pairs of a test and a training row whose distances are in memory.
_PAIRS_AT_ONCE = 2**21


@dataclass(frozen=True, slots=True)
class Probe:
    """Balanced accuracy, with 95 % intervals, of a probe for the forgotten classes; 0.5 is chance.

    Features of a retrained model also score far above chance, because images of an unseen class still look different.
    The target is the value of a retrained model, not 0.5.
    """

    against_all: Estimate
    """Forgotten images against images of all retained classes."""
    against_nearest: Estimate
    """Forgotten images against images of the nearest retained class."""
    nearest_class: int
    """Retained class whose mean training feature is nearest to the forgotten images' mean."""


@dataclass(frozen=True, slots=True)
class _Data:
    train: Tensor
    train_labels: Tensor
    train_side: Tensor
    """Whether a row belongs to a forgotten class."""
    train_near: Tensor
    """Whether a row belongs to a forgotten class or to the nearest retained class."""
    test: Tensor
    test_side: Tensor
    test_near: Tensor
    nearest: int

    def result(self, called_all: Tensor, called_nearest: Tensor) -> Probe:
        """Return the balanced accuracies of both probes, from their predictions (True: forgotten) on test rows."""
        near, side = self.test_near, self.test_side
        return Probe(_balanced(called_all, side), _balanced(called_nearest[near], side[near]), self.nearest)


@torch.no_grad()
def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int | Iterable[int],
    C: float = 1.0,
) -> Probe:
    """Train a linear probe for the forgotten classes on training features and score it on test features.

    The probe is a class-balanced logistic regression on features standardised by the training split. Its score is the
    balanced accuracy.

    Args:
        train_features: Features of training images of all classes, (n, d).
        train_labels: Classes of the training images, (n,).
        test_features: Features of test images of all classes, (m, d).
        test_labels: Classes of the test images, (m,).
        classes: Forgotten classes, as one side.
        C: Inverse strength of the regularisation.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(300) % 3
        >>> means = torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
        >>> train, test = (means[labels] + torch.randn(300, 2) for _ in range(2))
        >>> probe = linear_probe(train, labels, test, labels, classes=[0])
        >>> probe.against_all.value, probe.nearest_class
        (1.0, 1)
    """
    data = _data(train_features, train_labels, test_features, test_labels, class_tuple(classes))
    include = torch.stack([torch.ones_like(data.train_near), data.train_near], 1)
    fit = logistic_regression(data.train, data.train_side, include=include, C=C, standardised=True)
    called = fit.decision(data.test) > 0
    return data.result(called[:, 0], called[:, 1])


@torch.no_grad()
def knn_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    classes: int | Iterable[int],
    k: int = 5,
    seed: int = 0,
) -> Probe:
    """Predict forgotten classes by the nearest training features of each test image, and score the predictions.

    The k nearest features in Euclidean distance vote. The larger side of the training split is reduced to the size of
    the smaller side, stratified by class, so that no side wins by its number of images.

    Args:
        train_features: Features of training images of all classes, (n, d).
        train_labels: Classes of the training images, (n,).
        test_features: Features of test images of all classes, (m, d).
        test_labels: Classes of the test images, (m,).
        classes: Forgotten classes, as one side.
        k: Number of neighbours, odd.
        seed: Seed of the reduction.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(300) % 3
        >>> means = torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
        >>> train, test = (means[labels] + torch.randn(300, 2) for _ in range(2))
        >>> knn_probe(train, labels, test, labels, classes=[0]).against_all.value
        1.0
    """
    if k < 1 or k % 2 == 0:
        raise UsageError(f"k must be a positive odd number, so that votes cannot tie, got {k}.")
    data = _data(train_features, train_labels, test_features, test_labels, class_tuple(classes))
    generator = torch.Generator().manual_seed(seed)
    called = []
    for rows in (torch.ones_like(data.train_near), data.train_near):
        sides = [(rows & side).nonzero().squeeze(1) for side in (data.train_side, ~data.train_side)]
        size = min(map(len, sides))
        if 2 * size < k:
            raise UsageError(f"{k} neighbours need at least {k} training images, got {2 * size} after balancing.")
        drawn = [side[stratified_sample(data.train_labels[side], size, generator)] for side in sides]
        balanced = torch.cat(drawn).sort().values
        called.append(_vote(data.train[balanced], data.train_side[balanced], data.test, k))
    return data.result(*called)


def _vote(train: Tensor, side: Tensor, test: Tensor, k: int) -> Tensor:
    """Return for each test row whether most of its k nearest training rows are on the side, (m,)."""
    # Distances do not depend on the mean, but products of rows lose digits if the common mean is large.
    mean = sum_rows(train)[0] / len(train)
    train = train - mean
    squares = train.square().sum(dim=1)
    called = []
    for block in torch.split(test, max(1, _PAIRS_AT_ONCE // len(train))):
        # The squared distance minus |test row|^2, which does not change the order.
        distance = torch.addmm(squares, block - mean, train.T, alpha=-2)
        nearest = distance.topk(k, dim=1, largest=False).indices
        called.append(side[nearest].sum(dim=1) * 2 > k)
    return torch.cat(called)


def _data(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    forgotten: tuple[int, ...],
) -> _Data:
    train, train_labels, test, test_labels = two_splits(train_features, train_labels, test_features, test_labels)
    train_side, test_side = is_forgotten(train_labels, forgotten), is_forgotten(test_labels, forgotten)
    for name, side in (("training", train_side), ("test", test_side)):
        if not bool(side.any()) or bool(side.all()):
            raise UsageError(
                f"the {name} split contains {int(side.sum())} images of the forgotten classes {list(forgotten)} and "
                f"{int((~side).sum())} of others: a probe needs both."
            )
    nearest = _nearest_class(train, train_labels, train_side)
    train_near, test_near = train_side | (train_labels == nearest), test_side | (test_labels == nearest)
    if not bool((test_labels == nearest).any()):
        raise UsageError(
            f"the test split contains no image of class {nearest}, the retained class nearest to the forgotten."
        )
    return _Data(train, train_labels, train_side, train_near, test, test_side, test_near, nearest)


def _nearest_class(features: Tensor, labels: Tensor, forgotten: Tensor) -> int:
    counts = labels.bincount()
    sums = sum_rows(features, index=labels, count=len(counts))
    retained = labels[~forgotten].bincount(minlength=len(counts)) > 0
    mean = sums[~retained].sum(dim=0) / forgotten.sum()
    distance = torch.linalg.vector_norm(sums / counts.clamp(min=1).unsqueeze(1) - mean, dim=1)
    return int(distance.masked_fill(~retained, torch.inf).argmin())


def _balanced(called: Tensor, side: Tensor) -> Estimate:
    rates = [wilson(int(called[rows].sum()), int(rows.sum())) for rows in (side, ~side)]
    return balanced_accuracy(*rates)
