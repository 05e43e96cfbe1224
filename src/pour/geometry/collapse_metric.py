"""Neural Collapse from batches, on one process or many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pour._torchmetrics import Metric
from pour.errors import UsageError
from pour.geometry._inputs import as_double, as_labels, as_samples
from pour.geometry.collapse import agreements, collapse_measures, head_of_classes, precision_of

__all__ = ["NearestMeanAgreement", "NeuralCollapseMetric"]


class NeuralCollapseMetric(Metric):
    """NC1 to NC3 over batches, with the same values as :func:`neural_collapse` on all of them at once.

    The states are sums in float64, which processes add. NC1 needs S_W only along the span of the class means, but the
    span is known only after the last batch. Until then the state contains the d x d second moment.

    NC4 needs all class means first, so it takes a second pass over the data, with :class:`NearestMeanAgreement` and the
    :attr:`means` of this metric.

    ``compute()`` returns a dict of float64 scalars with the names of :class:`NeuralCollapse`, without ``nc4``, and
    without the values that need a head if no weight is passed.

    Args:
        num_classes: Number of classes; labels are 0 to num_classes - 1. Classes that do not occur are ignored.
        num_features: Width d of the features.
        weight: ``(num_classes, d)`` of the head, for NC3.
        kwargs: Options of ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> from pour.geometry import NeuralCollapseMetric, simplex_etf
        >>> means = simplex_etf(4, 16)
        >>> metric = NeuralCollapseMetric(4, 16, weight=means)
        >>> for _ in range(3):
        ...     labels = torch.randint(4, (32,))
        ...     metric.update(means[labels], labels)
        >>> round(float(metric.compute()["nc3"]), 5)
        0.0
    """

    higher_is_better = False
    is_differentiable = False
    full_state_update = False

    counts: Tensor
    sums: Tensor
    second: Tensor
    eps: Tensor
    weight: Tensor | None

    def __init__(self, num_classes: int, num_features: int, *, weight: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if num_classes < 2 or num_features < 1:
            raise UsageError(
                f"num_classes is {num_classes} and num_features {num_features}; expected at least 2 and at least 1."
            )
        if weight is not None and weight.shape != (num_classes, num_features):
            raise UsageError(
                f"weight has shape {tuple(weight.shape)}; expected {(num_classes, num_features)} for this metric."
            )
        self.num_classes = num_classes
        self.num_features = num_features
        self.register_buffer("weight", None if weight is None else as_samples(weight, "weight"))
        double = torch.float64
        self.add_state("counts", torch.zeros(num_classes, dtype=double), dist_reduce_fx="sum")
        self.add_state("sums", torch.zeros(num_classes, num_features, dtype=double), dist_reduce_fx="sum")
        self.add_state("second", torch.zeros(num_features, num_features, dtype=double), dist_reduce_fx="sum")
        self.add_state("eps", torch.tensor(torch.finfo(double).eps, dtype=double), dist_reduce_fx="max")

    def update(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch: ``(n, d)`` features and ``(n,)`` class indices."""
        if features.ndim != 2 or features.shape[1] != self.num_features:
            raise UsageError(f"features have shape {tuple(features.shape)}; expected (n, {self.num_features}).")
        index = as_labels(labels, features).to(self.sums.device)
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < self.num_classes:
            problem = f"labels run from {int(index.min())} to {int(index.max())}"
            raise UsageError(f"{problem}; expected class indices in 0 .. {self.num_classes - 1}.")
        rows = as_double(features).to(self.sums.device)
        self.counts += torch.bincount(index, minlength=self.num_classes)
        self.sums.index_add_(0, index, rows)
        self.second += rows.T @ rows
        self.eps = self.eps.clamp(min=precision_of(features))

    @property
    def means(self) -> Tensor:
        """Class means so far, ``(num_classes, d)``; NaN rows for classes without samples."""
        return self.sums / self.counts.unsqueeze(1)

    def compute(self) -> dict[str, Tensor]:
        """Return NC1 to NC3 by name."""
        # A check per batch, in update, would make the device wait at each.
        if not bool(torch.isfinite(self.second).all()):
            raise UsageError("features held NaN or infinite values; remove those rows first.")
        classes = self.counts.nonzero().flatten()
        if not len(classes):
            raise UsageError("No features were seen; call update first.")
        head, _ = head_of_classes(self.weight, None, classes, self.num_features)
        counts, means = self.counts[classes], self.means[classes]
        total = counts.sum()
        within = self.second / total - (means * (counts / total).unsqueeze(1)).T @ means
        measures = collapse_measures(means, head, lambda axes: ((axes @ within) * axes).sum(dim=1), eps=float(self.eps))
        measures["num_samples"] = int(total)
        return {
            name: torch.tensor(value, dtype=torch.float64, device=self.sums.device)
            for name, value in measures.items()
            if value is not None
        }


class NearestMeanAgreement(Metric):
    """NC4 over batches: the share of samples on which the head and the nearest class mean agree.

    This is the second pass, after the class means are known (:attr:`NeuralCollapseMetric.means`). Classes without
    samples in the first pass, whose mean is NaN, are ignored in both decisions.

    Args:
        means: ``(C, d)`` class means.
        weight: ``(C, d)`` of the head.
        bias: ``(C,)`` of the head.
        kwargs: Options of ``torchmetrics.Metric``.

    Example:
        >>> import torch
        >>> from pour.geometry import NearestMeanAgreement, simplex_etf
        >>> means = simplex_etf(4, 16)
        >>> metric = NearestMeanAgreement(means, weight=2 * means)
        >>> metric.update(torch.randn(32, 16))
        >>> float(metric.compute())
        1.0
    """

    higher_is_better = True
    is_differentiable = False
    full_state_update = False

    agreed: Tensor
    total: Tensor
    means: Tensor
    weight: Tensor
    bias: Tensor | None

    def __init__(self, means: Tensor, weight: Tensor, bias: Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if means.shape != weight.shape:
            raise UsageError(
                f"means have shape {tuple(means.shape)} and weight {tuple(weight.shape)}; expected one row per class."
            )
        classes = torch.isfinite(means).all(dim=1).nonzero().flatten()
        if not len(classes):
            raise UsageError("All class means are NaN; run the first pass over some data.")
        head, offset = head_of_classes(weight, bias, classes, means.shape[1])
        self.register_buffer("means", as_double(means)[classes])
        self.register_buffer("weight", head)
        self.register_buffer("bias", offset)
        self.add_state("agreed", torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, features: Tensor) -> None:
        """Add a batch of ``(n, d)`` features."""
        rows = as_samples(features, "features").to(self.means.device)
        if rows.shape[1] != self.means.shape[1]:
            raise UsageError(f"features have width {rows.shape[1]}, the class means have {self.means.shape[1]}.")
        self.agreed += agreements(rows, self.means, self.weight, self.bias).sum()
        self.total += len(rows)

    def compute(self) -> Tensor:
        """Return the share, a float64 scalar."""
        if not int(self.total):
            raise UsageError("No features were seen; call update first.")
        return self.agreed.double() / self.total
