"""Directions from data: class means, computed batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double, as_labels
from pour.geometry.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

__all__ = ["ProjectorFitter"]


class ProjectorFitter:
    r"""Compute the means of the classes to forget over batches, and the projector that removes them.

    Means are stored in float64 and updated by $\mu \leftarrow \mu + (\mu_b - \mu)\, n_b / n$ (Welford and Chan).
    No sum grows with the data. Memory: one row of d numbers per class.

    Args:
        classes: Classes to forget.
        centered: Whether the mean of all class means is subtracted from each class mean. This needs batches of the
            other classes too, which are skipped otherwise.

    Examples:
        >>> import torch
        >>> from pour.geometry import ProjectorFitter
        >>> fitter = ProjectorFitter(classes=[0])
        >>> for features, labels in [(torch.tensor([[1.0, 0.0], [0.0, 4.0]]), torch.tensor([0, 1]))]:
        ...     _ = fitter.update(features, labels)
        >>> fitter.projector
        Projector(num_features=2, rank=1)
    """

    def __init__(self, classes: Sequence[int], *, centered: bool = False) -> None:
        self.classes = [int(label) for label in classes]
        self.centered = centered
        if not self.classes:
            raise UsageError("classes is empty; name at least one class to forget.")
        if len(set(self.classes)) != len(self.classes):
            raise UsageError(f"classes {self.classes} contains duplicates; name each class once.")
        if min(self.classes) < 0:
            raise UsageError(f"classes {self.classes} contains a negative index; count classes from 0.")
        self._counts: dict[int, int] = {}
        self._means: dict[int, Tensor] = {}
        self._dtype = torch.float32

    def update(self, features: Tensor, labels: Tensor | None = None) -> Self:
        """Add a batch.

        Args:
            features: `(..., d)`.
            labels: Class indices of shape `(...)`. Optional if all features belong to the one class to forget.
        """
        if features.ndim < 2 or not features.is_floating_point():
            problem = f"features are {features.dtype} of shape {tuple(features.shape)}"
            raise UsageError(f"{problem}; expected floating-point numbers of shape (..., d).")
        if self._means and (width := len(next(iter(self._means.values())))) != features.shape[-1]:
            raise UsageError(f"features have width {features.shape[-1]}, earlier batches had {width}.")
        if labels is None:
            if len(self.classes) > 1 or self.centered:
                raise UsageError("Labels are optional only for a single class and plain means; pass labels.")
            labels = torch.full(features.shape[:-1], self.classes[0], device=features.device)
        rows = as_double(features).flatten(0, -2)
        flat = as_labels(labels, features).flatten().to(rows.device)
        if not self.centered:
            is_forgotten = torch.isin(flat, torch.tensor(self.classes, device=flat.device))
            rows, flat = rows[is_forgotten], flat[is_forgotten]
        if not bool(torch.isfinite(rows).all()):
            raise UsageError("features contain NaN or infinite values; remove those rows first.")
        self._dtype = torch.promote_types(self._dtype, features.dtype)

        classes, index, counts = torch.unique(flat, return_inverse=True, return_counts=True)
        sums = rows.new_zeros(len(classes), rows.shape[1]).index_add_(0, index, rows)
        self._combine(classes, counts, sums / counts.unsqueeze(1))
        return self

    @property
    def counts(self) -> Tensor:
        """Number of rows of each of `classes` so far, `(k,)`."""
        return torch.tensor([self._counts.get(label, 0) for label in self.classes])

    @property
    def num_classes(self) -> int:
        """Number of classes with at least one row so far."""
        return len(self._means)

    @property
    def means(self) -> Tensor:
        """Means of `classes`, `(k, d)` in float64 on the CPU."""
        missing = [label for label in self.classes if label not in self._means]
        if missing:
            raise UsageError(
                f"No features of class {', '.join(map(str, missing))} were added; call update with some first."
            )
        return torch.stack([self._means[label] for label in self.classes])

    @property
    def directions(self) -> Tensor:
        """Rows that the projector removes, `(k, d)`: the means, centred if requested."""
        means = self.means
        if not self.centered:
            return means
        if self.num_classes < 2:
            raise UsageError(
                "Centred means need features of at least two classes; update with retained classes too, "
                "or use centered=False."
            )
        return means - torch.stack([self._means[label] for label in sorted(self._means)]).mean(dim=0)

    @property
    def projector(self) -> Projector:
        """Projector that removes `directions`, in float32, or in float64 if the features were float64."""
        return Projector.from_directions(self.directions.to(self._dtype))

    def _combine(self, labels: Tensor, counts: Tensor, means: Tensor) -> None:
        """Move each class's mean towards that of new rows by their share."""
        for label, count, mean in zip(labels.tolist(), counts.tolist(), means.cpu(), strict=True):
            total = self._counts.get(label, 0) + count
            start = self._means.get(label, torch.zeros_like(mean))
            self._means[label] = start + (mean - start) * (count / total)
            self._counts[label] = total
