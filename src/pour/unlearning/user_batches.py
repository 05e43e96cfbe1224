"""The user's own batches: checked as they are read, with a length where they have one, and two sources mixed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.samples import checked_batch
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from pour.data.dataset import LabelArray

__all__ = ["LabelRule", "MixedBatches", "OwnBatches", "own_batches"]


@dataclass
class LabelRule:
    """Which labels images may have, by what they are there for."""

    what: str = "the images"
    """What they are called in a sentence."""
    num_classes: int | None = None
    """How many scores the model has, where that is known; labels must be below."""
    only: frozenset[int] | None = None
    """The classes that they must be of."""
    never: frozenset[int] = frozenset()
    """Classes that they must not be of: those that are to be forgotten."""
    unwanted: frozenset[int] = frozenset()
    """Classes that they should not be of: those that the model was made to forget before. Told once."""

    def check(self, labels: Tensor | LabelArray) -> None:
        """Raise for the first label that may not be, and warn of one that should not."""
        for label in np.unique(np.asarray(torch.as_tensor(labels).cpu())).tolist():
            if self.num_classes is not None and not 0 <= label < self.num_classes:
                raise UsageError(
                    f"A batch has the label {label}, but the model has classes 0 to {self.num_classes - 1}."
                )
            if self.only is not None and label not in self.only:
                named = ", ".join(map(str, sorted(self.only)))
                raise UsageError(
                    f"{self.what} hold class {label}, which is not to be forgotten ({named} is); give images of the "
                    "classes to forget alone."
                )
            if label in self.never:
                raise UsageError(
                    f"{self.what} hold class {label}, which is to be forgotten; leave its images out "
                    "(pour.Splits divides a dataset)."
                )
            if label in self.unwanted:
                self.unwanted = frozenset()
                warnings.warn(
                    f"{self.what} hold class {label}, which the model was made to forget before; training on them "
                    "teaches it again, so leave them out.",
                    stacklevel=2,
                )


class OwnBatches:
    """The user's own batches, as often as they are read: pairs with int64 labels that the model has scores for."""

    def __init__(self, batches: Iterable[Any], rule: LabelRule) -> None:
        self._batches = batches
        self._rule = rule

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self._checked, self._batches)

    def _checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = checked_batch(batch)
        if labels.is_floating_point() or labels.is_complex():
            raise UsageError(
                f"The labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; give class indices, a whole "
                "number for each image."
            )
        if labels.shape[1:] == (1,):
            labels = labels.squeeze(1)
        if labels.ndim != 1:
            raise UsageError(
                f"The labels of a batch have the shape {tuple(labels.shape)}; give one to an image, or scenes with one "
                "to a pixel by pour.ForgetRequest.of_scenes."
            )
        if not len(labels):
            raise UsageError("A batch holds no image; leave empty batches out.")
        labels = labels.to(torch.int64)
        self._rule.check(labels)
        # Whatever a model's precision, methods train it in float32.
        return images.float() if images.is_floating_point() else images, labels


class _SizedBatches(OwnBatches):
    """The same with a length, which training needs."""

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


def own_batches(batches: Iterable[Any], rule: LabelRule) -> OwnBatches:
    """Batches of the user's own, checked by ``rule``; with a length, which training needs, where they have one."""
    try:
        len(batches)  # type: ignore[arg-type]
    except TypeError:
        # None at all, or a DataLoader over a stream, which does not know its own.
        return OwnBatches(batches, rule)
    return _SizedBatches(batches, rule)


class MixedBatches:
    """Two sources of batches, the images of the one spread over the batches of the other, as often as they are read.

    Batches of one kind alone would have gradients that no batch of the whole data has.
    """

    def __init__(self, one: Iterable[tuple[Tensor, Tensor]], other: Iterable[tuple[Tensor, Tensor]]) -> None:
        counts = [sum(len(labels) for _, labels in part) for part in (one, other)]
        order = (0, 1) if counts[0] >= counts[1] else (1, 0)
        self._larger, self._smaller = ((one, other)[place] for place in order)
        self._counts = [counts[place] for place in order]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rest = iter(self._smaller)
        spare: list[tuple[Tensor, Tensor]] = []
        seen = given = 0
        for images, labels in self._larger:
            seen += len(labels)
            # As many of the smaller source as keep step with the larger.
            due = round(self._counts[1] * seen / max(1, self._counts[0])) - given
            while sum(len(part) for _, part in spare) < due and (more := next(rest, None)) is not None:
                spare.append(more)
            if due <= 0 or not spare:
                yield images, labels
                continue
            held = torch.cat([part for part, _ in spare]), torch.cat([part for _, part in spare])
            spare = [(held[0][due:], held[1][due:])]
            given += len(held[1][:due])
            yield torch.cat([images, held[0][:due].to(images)]), torch.cat([labels, held[1][:due].to(labels)])
