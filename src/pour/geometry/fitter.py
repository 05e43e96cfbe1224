"""Directions from data: class means that are gathered batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double, as_labels
from pour.geometry.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

__all__ = ["ProjectorFitter"]


class ProjectorFitter:
    r"""Gather the means of the classes to forget over batches, and make the projector that removes them.

    Means are kept in float64 and combined by the pairwise update of Welford and Chan,
    :math:`\mu \leftarrow \mu + (\mu_b - \mu)\, n_b / n`, so that no sum grows with the data and fitters of several
    processes merge into the same result. Memory: one row of d numbers to a class.

    Args:
        classes: the classes to forget.
        centered: subtract from each class mean the mean of all class means seen. This needs batches of the other
            classes too; without it they are passed over.

    Example:
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
            raise UsageError(f"classes {self.classes} holds duplicates; name each class once.")
        if min(self.classes) < 0:
            raise UsageError(f"classes {self.classes} holds a negative index; count classes from 0.")
        self._counts: dict[int, int] = {}
        self._means: dict[int, Tensor] = {}
        self._dtype = torch.float32

    def update(self, features: Tensor, labels: Tensor | None = None) -> Self:
        """Add a batch.

        Args:
            features: ``(..., d)``.
            labels: class indices of shape ``(...)``. May be left out where there is one class to forget and all
                features belong to it.
        """
        if features.ndim < 2 or not features.is_floating_point():
            raise UsageError(
                f"features are {features.dtype} of shape {tuple(features.shape)}; "
                "expected floating-point numbers of shape (..., d)."
            )
        if self._means and (width := len(next(iter(self._means.values())))) != features.shape[-1]:
            raise UsageError(f"features have width {features.shape[-1]}, earlier batches had {width}.")
        if labels is None:
            if len(self.classes) > 1 or self.centered:
                raise UsageError("Labels may be left out only for a single class and plain means; pass labels.")
            labels = torch.full(features.shape[:-1], self.classes[0], device=features.device)
        rows = as_double(features).flatten(0, -2)
        flat = as_labels(labels, features).flatten().to(rows.device)
        if not self.centered:
            wanted = torch.isin(flat, torch.tensor(self.classes, device=flat.device))
            rows, flat = rows[wanted], flat[wanted]
        if not bool(torch.isfinite(rows).all()):
            raise UsageError("features hold NaN or infinite values; a class mean would be lost to them.")
        self._dtype = torch.promote_types(self._dtype, features.dtype)

        seen, index, counts = torch.unique(flat, return_inverse=True, return_counts=True)
        sums = rows.new_zeros(len(seen), rows.shape[1]).index_add_(0, index, rows)
        self._combine(seen, counts, sums / counts.unsqueeze(1))
        return self

    def merge(self, other: ProjectorFitter) -> Self:
        """Add what ``other``, a fitter of the same classes on other data, has seen."""
        if (set(self.classes), self.centered) != (set(other.classes), other.centered):
            raise UsageError(
                f"Fitters of different kinds do not merge: classes {self.classes}, centered={self.centered} "
                f"and classes {other.classes}, centered={other.centered}."
            )
        state = other.state()
        if self._means and other._means and state["means"].shape[1] != len(next(iter(self._means.values()))):
            raise UsageError("Fitters of features of different widths do not merge.")
        self._combine(state["labels"], state["counts"], state["means"])
        self._dtype = torch.promote_types(self._dtype, other._dtype)
        return self

    def state(self) -> dict[str, Tensor]:
        """Give all that was seen as plain tensors, to send to another process or to save."""
        labels = sorted(self._counts)
        return {
            "classes": torch.tensor(self.classes),
            "centered": torch.tensor(self.centered),
            "labels": torch.tensor(labels, dtype=torch.int64),
            "counts": torch.tensor([self._counts[label] for label in labels], dtype=torch.int64),
            "means": torch.stack([self._means[label] for label in labels]) if labels else torch.zeros(0, 0).double(),
            "double": torch.tensor(self._dtype == torch.float64),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Self:
        """Make the fitter again whose :meth:`state` this is."""
        missing = {"classes", "centered", "labels", "counts", "means", "double"} - set(state)
        if missing:
            raise UsageError(f"The state lacks {sorted(missing)}; pass what ProjectorFitter.state() returned.")
        fitter = cls(state["classes"].tolist(), centered=bool(state["centered"]))
        fitter._combine(state["labels"], state["counts"], state["means"])
        fitter._dtype = torch.float64 if bool(state["double"]) else torch.float32
        return fitter

    @property
    def counts(self) -> Tensor:
        """How many rows of each of ``classes`` were seen, ``(k,)``."""
        return torch.tensor([self._counts.get(label, 0) for label in self.classes])

    @property
    def means(self) -> Tensor:
        """The means of ``classes``, ``(k, d)`` in float64 on the CPU."""
        missing = [label for label in self.classes if label not in self._means]
        if missing:
            raise UsageError(f"No features of class {', '.join(map(str, missing))} were seen; update with some first.")
        return torch.stack([self._means[label] for label in self.classes])

    @property
    def directions(self) -> Tensor:
        """What the projector removes, ``(k, d)``: the means, less the mean of all class means seen if centred."""
        means = self.means
        if not self.centered:
            return means
        if len(self._means) < 2:
            raise UsageError(
                "Centred means need features of at least two classes; update with retained classes too, "
                "or use centered=False."
            )
        return means - torch.stack([self._means[label] for label in sorted(self._means)]).mean(dim=0)

    @property
    def projector(self) -> Projector:
        """The projector that removes :attr:`directions`, in float32, or in float64 where features came in float64."""
        return Projector.from_directions(self.directions.to(self._dtype))

    def _combine(self, labels: Tensor, counts: Tensor, means: Tensor) -> None:
        """Move each class's mean towards that of new rows by their share."""
        for label, count, mean in zip(labels.tolist(), counts.tolist(), means.cpu(), strict=True):
            total = self._counts.get(label, 0) + count
            start = self._means.get(label, torch.zeros_like(mean))
            self._means[label] = start + (mean - start) * (count / total)
            self._counts[label] = total
