"""Linear CKA as a torchmetrics class, in a separate file because importing torchmetrics takes a second."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pour._torchmetrics import Metric
from pour.errors import UsageError
from pour.metrics.cka import Moments, add_moments, check_options, check_pair, cka_of_moments, no_moments

__all__ = ["LinearCKA"]


class LinearCKA(Metric):
    """Linear CKA of paired batches in one pass. It is exact for splits of any size.

    Its state consists of sums over samples, O(d_x^2 + d_y^2) numbers in float64. Several processes add their sums.
    Batches are never averaged. The centred, uncentred and debiased values use the same sums, so a
    `torchmetrics.MetricCollection` of them computes the sums once. Raw sums lose digits if the mean's norm is R times
    the spread: relative errors are about 1e-16 R^2, debiased 1e-16 R^4. Features of networks have R < 10.

    Args:
        num_features_x: Number of columns of x, by default the columns of the first batch.
        num_features_y: Number of columns of y, by default as x.
        center: As in `linear_cka`.
        debiased: As in `linear_cka`.
        kwargs: Options of `torchmetrics.Metric`.

    Examples:
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
            raise UsageError("num_features_y is set without num_features_x: pass both, or neither.")
        num_features_y = num_features_x if num_features_y is None else num_features_y
        # Zeros without a shape get the shape of the first batch.
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
        """Return the CKA of all samples as a float64 scalar."""
        if float(self.weights.sum()) == 0:
            raise UsageError("LinearCKA has no samples: call update with features first.")
        return cka_of_moments(self._moments(), self.center, self.debiased)

    def sync(
        self,
        dist_sync_fn: Callable[..., Any] | None = None,
        process_group: Any | None = None,
        should_sync: bool = True,
        distributed_available: Callable[[], bool] | None = None,
    ) -> None:
        """Add the sums of all processes. Processes without a batch get the sizes of the sums from the others."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if should_sync and distributed and not self._is_synced:
            moments = self._moments()
            widths = [m.shape[-1] if m.ndim else 0 for m in (moments.weighted_x, moments.weighted_y)]
            sizes = torch.tensor(widths, device=self.weights.device)
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
