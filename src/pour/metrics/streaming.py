"""The streaming classes of metrics whose functions stand in other modules, which thus do without torchmetrics."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pour._torchmetrics import Metric
from pour.errors import UsageError
from pour.metrics._inputs import class_tuple
from pour.metrics.accuracy import count_right, right_shares
from pour.metrics.cka import Moments, add_moments, check_options, check_pair, cka_of_moments, no_moments
from pour.metrics.predictions import uniformity_of_sums, uniformity_sums

__all__ = ["LinearCKA", "RetainedUniformity", "SplitAccuracy"]


class LinearCKA(Metric):
    """The streaming form of `linear_cka`: one pass over paired batches, exact on any split size.

    Only sums are kept, O(d_x^2 + d_y^2) float64 numbers whatever the number of samples, and they add over processes.
    Batches are never averaged. The same sums serve the centred, uncentred and debiased value, so a
    `torchmetrics.MetricCollection` of the three does the work once. Raw sums lose digits with the ratio R of the
    mean's norm to the spread: relative errors are about 1e-16 R^2, debiased 1e-16 R^4 (features of networks: R < 10).

    Args:
        num_features_x: number of columns of x, by default those of the first batch.
        num_features_y: number of columns of y, by default as x.
        center: as in `linear_cka`.
        debiased: as in `linear_cka`.
        kwargs: passed on to `torchmetrics.Metric`.

    Example:
        >>> metric = LinearCKA()
        >>> for batch in torch.arange(24.0).view(3, 4, 2):
        ...     metric.update(batch, batch.flip(1))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    is_differentiable = False
    full_state_update = False

    xx: Tensor
    yy: Tensor
    xy: Tensor
    weighted_x: Tensor
    weighted_y: Tensor
    weights: Tensor

    def __init__(
        self,
        num_features_x: int | None = None,
        num_features_y: int | None = None,
        *,
        center: bool = True,
        debiased: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        check_options(center, debiased)
        self.center = center
        self.debiased = debiased
        if num_features_x is None and num_features_y is not None:
            raise UsageError("num_features_y was given without num_features_x: give both, or neither.")
        num_features_y = num_features_x if num_features_y is None else num_features_y
        # Zeros without shape take on the shape of the first batch.
        moments = no_moments() if num_features_x is None else no_moments().sized(num_features_x, num_features_y or 0)
        for name, zero in moments._asdict().items():
            self.add_state(name, zero, dist_reduce_fx="sum")

    def update(self, x: Tensor, y: Tensor) -> None:
        """Add the features (b, d_x) and (b, d_y) of the same b samples."""
        x, y = check_pair(x, y)
        moments = self._moments()
        if x.device != self.weights.device:
            raise UsageError(
                f"LinearCKA is on {self.weights.device}, the features on {x.device}: use metric.to(device)."
            )
        for name, features, old in (("x", x, moments.weighted_x), ("y", y, moments.weighted_y)):
            if old.ndim and features.shape[1] != old.shape[1]:
                raise UsageError(f"{name} has {features.shape[1]} features, expected {old.shape[1]} as before.")
        self._set(add_moments(moments, x, y))

    def compute(self) -> Tensor:
        """Return the CKA of all samples seen, a float64 scalar."""
        if float(self.weights.sum()) == 0:
            raise UsageError("LinearCKA has seen no samples: call update with features first.")
        return cka_of_moments(self._moments(), self.center, self.debiased)

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Reduce over processes, those included that have seen no batch and so do not know the sizes."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if should_sync and distributed and not self._is_synced:
            moments = self._moments()
            known = [m.shape[-1] if m.ndim else 0 for m in (moments.weighted_x, moments.weighted_y)]
            sizes = torch.tensor(known, device=self.weights.device)
            group = process_group or self.process_group
            torch.distributed.all_reduce(sizes, torch.distributed.ReduceOp.MAX, group=group)
            if moments.weighted_x.ndim == 0 and int(sizes.min()) > 0:
                self._set(moments.sized(*sizes.tolist()))
        super().sync(dist_sync_fn, process_group, should_sync, distributed_available)

    def _moments(self) -> Moments:
        return Moments(*(getattr(self, name) for name in Moments._fields))

    def _set(self, moments: Moments) -> None:
        for name, value in moments._asdict().items():
            setattr(self, name, value)


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
        correct, total = count_right(scores, labels, self.classes)
        self.correct = self.correct + correct
        self.total = self.total + total

    def compute(self) -> dict[str, Tensor]:
        """Return the fractions under "retain" and "forget"; a side without images is left out."""
        return right_shares(self.correct, self.total)


class RetainedUniformity(Metric):
    """The streaming form of `retained_uniformity`; it reduces over processes.

    Args:
        classes: the forgotten classes.
        kwargs: passed on to `torchmetrics.Metric`.

    Example:
        >>> metric = RetainedUniformity(classes=[0])
        >>> metric.update(torch.zeros(5, 3))
        >>> round(metric.compute()["entropy"].item(), 4)
        0.6931
    """

    is_differentiable = False
    full_state_update = False

    sums: Tensor
    """Sums over images of the entropy and of the divergence, and the number of images, shape (3,)."""

    def __init__(self, classes: int | Iterable[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.classes = class_tuple(classes)
        self.add_state("sums", torch.zeros(3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, scores: Tensor) -> None:
        """Add the scores (n, C) of a batch of forgotten images."""
        self.sums = self.sums + uniformity_sums(scores, self.classes)

    def compute(self) -> dict[str, Tensor]:
        """Return "entropy" and "kl_to_uniform", means over all images seen."""
        return uniformity_of_sums(self.sums)
