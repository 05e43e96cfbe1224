"""Probes: how well a new linear classifier or the nearest neighbours find the forgotten class in features."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.metrics._inputs import class_tuple, is_forgotten, two_splits
from pour.metrics._sampling import stratified_sample
from pour.metrics.intervals import Estimate, balanced_accuracy, wilson
from pour.metrics.logistic import logistic_regression, standardise

__all__ = ["Probe", "knn_probe", "linear_probe"]

# Test rows whose distances to all training rows are held at a time.
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Probe:
    """Balanced accuracy, with 95 % intervals, of a probe for the forgotten classes; 0.5 is chance.

    A retrained model's features score far above chance too, since unseen classes still look different: its value is
    the target, not 0.5.
    """

    against_all: Estimate
    """Forgotten images against those of all retained classes."""
    against_nearest: Estimate
    """Forgotten images against those of the nearest retained class."""
    nearest_class: int
    """The retained class whose mean training feature is nearest to the forgotten images' mean."""


@dataclass(frozen=True, slots=True)
class _Data:
    train: Tensor
    train_labels: Tensor
    train_side: Tensor
    test: Tensor
    test_side: Tensor
    test_nearest: Tensor
    nearest: int

    def result(self, called_all: Tensor, called_nearest: Tensor) -> Probe:
        rows = self.test_side | self.test_nearest
        return Probe(
            _balanced(called_all, self.test_side),
            _balanced(called_nearest[rows], self.test_side[rows]),
            self.nearest,
        )


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

    A class-balanced logistic regression on features standardised by the training split; scored by balanced accuracy.

    Args:
        train_features: features of training images of all classes, shape (n, d).
        train_labels: their classes, shape (n,).
        test_features: features of test images of all classes, shape (m, d).
        test_labels: their classes, shape (m,).
        classes: the forgotten classes, looked for as one.
        C: inverse strength of the regularisation.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(300) % 3
        >>> means = torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
        >>> train, test = (means[labels] + torch.randn(300, 2) for _ in range(2))
        >>> probe = linear_probe(train, labels, test, labels, classes=[0])
        >>> probe.against_all.value, probe.nearest_class
        (1.0, 1)
    """
    task = _task(train_features, train_labels, test_features, test_labels, class_tuple(classes))
    train, test = standardise(task.train, task.test)
    near = task.train_side | (task.train_labels == task.nearest)
    fit = logistic_regression(train, task.train_side, include=torch.stack([torch.ones_like(near), near], 1), C=C)
    called = fit.decision(test) > 0
    return task.result(called[:, 0], called[:, 1])


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
    """Look for the forgotten classes among the nearest training features of each test image.

    Majority vote of the k nearest in Euclidean distance between features as they are. So that neither side wins by
    numbers, the larger side of the training split is reduced to the size of the smaller, stratified by class.

    Args:
        train_features: features of training images of all classes, shape (n, d).
        train_labels: their classes, shape (n,).
        test_features: features of test images of all classes, shape (m, d).
        test_labels: their classes, shape (m,).
        classes: the forgotten classes, looked for as one.
        k: number of neighbours, odd.
        seed: fixes the reduction.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> labels = torch.arange(300) % 3
        >>> means = torch.tensor([[9.0, 0.0], [0.0, 0.0], [0.0, 9.0]])
        >>> train, test = (means[labels] + torch.randn(300, 2) for _ in range(2))
        >>> knn_probe(train, labels, test, labels, classes=[0]).against_all.value
        1.0
    """
    if k < 1 or k % 2 == 0:
        raise UsageError(f"k must be a positive odd number, so that votes cannot tie, got {k}.")
    task = _task(train_features, train_labels, test_features, test_labels, class_tuple(classes))
    generator = torch.Generator().manual_seed(seed)
    # Distances do not change, and their expansion into products loses no digits to a large common mean.
    mean = task.train.mean(dim=0)
    train, test = task.train - mean, task.test - mean
    everything = torch.ones_like(task.train_side)
    called = []
    for rows in (everything, task.train_side | (task.train_labels == task.nearest)):
        positive = _indices(rows & task.train_side)
        negative = _indices(rows & ~task.train_side)
        size = min(len(positive), len(negative))
        if 2 * size < k:
            raise UsageError(f"{k} neighbours need at least {k} training images, got {2 * size} after balancing.")
        sides = [side[stratified_sample(task.train_labels[side], size, generator)] for side in (positive, negative)]
        balanced = torch.cat(sides).sort().values
        called.append(_vote(train[balanced], task.train_side[balanced], test, k))
    return task.result(called[0], called[1])


def _vote(train: Tensor, side: Tensor, test: Tensor, k: int) -> Tensor:
    """Return for each test row whether most of its k nearest training rows are on the side, shape (m,)."""
    squares = train.square().sum(dim=1)
    called = []
    for block in torch.split(test, _BLOCK):
        # The squared distance less |test row|^2, which does not change the order.
        distance = torch.addmm(squares, block, train.T, alpha=-2)
        nearest = distance.topk(k, dim=1, largest=False).indices
        called.append(side[nearest].sum(dim=1) * 2 > k)
    return torch.cat(called)


def _task(
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
                f"the {name} split holds {int(side.sum())} images of the forgotten classes {list(forgotten)} and "
                f"{int((~side).sum())} of others: a probe needs both."
            )
    nearest = _nearest_class(train, train_labels, train_side)
    test_nearest = test_labels == nearest
    if not bool(test_nearest.any()):
        raise UsageError(
            f"the test split holds no image of class {nearest}, the retained class nearest to the forgotten."
        )
    return _Data(train, train_labels, train_side, test, test_side, test_nearest, nearest)


def _nearest_class(features: Tensor, labels: Tensor, forgotten: Tensor) -> int:
    retained = labels[~forgotten]
    counts = retained.bincount()
    sums = features.new_zeros(len(counts), features.shape[1]).index_add_(0, retained, features[~forgotten])
    means = sums / counts.clamp(min=1).unsqueeze(1)
    distance = torch.linalg.vector_norm(means - features[forgotten].mean(dim=0), dim=1)
    return int(distance.masked_fill(counts == 0, torch.inf).argmin())


def _balanced(called: Tensor, side: Tensor) -> Estimate:
    tpr = wilson(int(called[side].sum()), int(side.sum()))
    fpr = wilson(int(called[~side].sum()), int((~side).sum()))
    return balanced_accuracy(tpr, fpr)


def _indices(mask: Tensor) -> Tensor:
    return mask.nonzero().squeeze(1)
