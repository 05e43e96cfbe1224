"""Neural Collapse from batches, on one process or many."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pour._torchmetrics import Metric
from pour.errors import UsageError
from pour.geometry._inputs import as_double, as_labels, as_samples
from pour.geometry.collapse import agreements, collapse_measures, precision_of, seen_head

__all__ = ["NearestMeanAgreement", "NeuralCollapseMetric"]


class NeuralCollapseMetric(Metric):
    """NC1 to NC3 over batches; exactly what :func:`neural_collapse` gives on all of them at once.

    The states are sums in float64, so processes reduce by adding them. NC1 looks at S_W only along the span of the
    class means, but the span is known only after the last batch, so the d x d second moment is kept meanwhile.

    NC4 is not here: the nearest mean of a sample is known only once all means are, so it takes a second pass over the
    data, with :class:`NearestMeanAgreement` and this metric's :attr:`means`.

    ``compute()`` gives a dict of float64 scalars with the names of :class:`NeuralCollapse`, less ``nc4`` (and, without
    a head, less what needs one).

    Args:
        num_classes: labels lie in 0 .. num_classes - 1; classes that never occur are left out at the end.
        num_features: the width d of the features.
        weight: ``(num_classes, d)`` of the head, for NC3.
        kwargs: options of ``torchmetrics.Metric``.

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
            raise UsageError(
                f"labels run from {int(index.min())} to {int(index.max())}; "
                f"expected class indices in 0 .. {self.num_classes - 1}."
            )
        rows = as_double(features).to(self.sums.device)
        self.counts += torch.bincount(index, minlength=self.num_classes)
        self.sums.index_add_(0, index, rows)
        self.second += rows.T @ rows
        self.eps = self.eps.clamp(min=precision_of(features))

    @property
    def means(self) -> Tensor:
        """The class means so far, ``(num_classes, d)``; NaN rows for classes not seen."""
        return self.sums / self.counts.unsqueeze(1)

    def compute(self) -> dict[str, Tensor]:
        """Give NC1 to NC3 by name."""
        # Here rather than in update: one check at the end does not stall the device at every batch.
        if not bool(torch.isfinite(self.second).all()):
            raise UsageError("features held NaN or infinite values; remove those rows first.")
        seen = self.counts.nonzero().flatten()
        if not len(seen):
            raise UsageError("No features were seen; call update first.")
        head, _ = seen_head(self.weight, None, seen, self.num_features)
        counts, means = self.counts[seen], self.means[seen]
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

    This is the second pass, after the class means are known (:attr:`NeuralCollapseMetric.means`). Classes whose mean is
    NaN, never seen in the first pass, are left out of both decisions.

    Args:
        means: ``(C, d)`` class means.
        weight: ``(C, d)`` of the head.
        bias: ``(C,)`` of the head.
        kwargs: options of ``torchmetrics.Metric``.

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
                f"means have shape {tuple(means.shape)} and weight {tuple(weight.shape)}; "
                "expected one row each to a class."
            )
        seen = torch.isfinite(means).all(dim=1).nonzero().flatten()
        if not len(seen):
            raise UsageError("All class means are NaN; run the first pass over some data.")
        head, offset = seen_head(weight, bias, seen, means.shape[1])
        self.register_buffer("means", as_double(means)[seen])
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
        """Give the share, a float64 scalar."""
        if not int(self.total):
            raise UsageError("No features were seen; call update first.")
        return self.agreed.double() / self.total
