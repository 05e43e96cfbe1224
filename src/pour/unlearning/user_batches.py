"""Batches of a user's loader, checked as they are read, and two sources of batches mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.samples import checked_batch
from pour.errors import UsageError, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch import Tensor

    from pour.data.dataset import LabelArray

__all__ = ["LabelRule", "MixedBatches", "UserBatches", "join_batches", "join_images"]


@dataclass
class LabelRule:
    """Labels that the images of one purpose may have."""

    what: str = "the images"
    """Subject of the messages."""
    num_classes: int | None = None
    """Number of scores of the model, or None if it is unknown. Labels must be smaller."""
    only: frozenset[int] | None = None
    """Classes that the images must show; None for all classes."""
    never: frozenset[int] = frozenset()
    """Classes that the images must not show, because they are to be forgotten."""
    unwanted: frozenset[int] = frozenset()
    """Classes forgotten by earlier requests. The first label of such a class causes one warning."""

    def check(self, labels: Tensor | LabelArray) -> None:
        """Raise UsageError for the first forbidden label. Warn about a label of a class forgotten earlier."""
        if labels.ndim != 1:
            raise UsageError(
                f"The labels have the shape {tuple(labels.shape)}; pass one label per image, or pass scenes "
                "for labels of pixels (pour.ForgetRequest.of_scenes)."
            )
        for label in np.unique(np.asarray(torch.as_tensor(labels).cpu())).tolist():
            if self.num_classes is not None and not 0 <= label < self.num_classes:
                raise UsageError(
                    f"A batch has the label {label}, but the model has classes 0 to {self.num_classes - 1}; "
                    "correct the labels."
                )
            if self.only is not None and label not in self.only:
                requested = ", ".join(map(str, sorted(self.only)))
                raise UsageError(
                    f"{self.what} contain class {label}, but the request forgets only {requested}; pass images of the "
                    "classes to forget alone."
                )
            if label in self.never:
                raise UsageError(
                    f"{self.what} contain class {label}, which is to be forgotten; leave its images out "
                    "(pour.Splits divides a dataset)."
                )
            if label in self.unwanted:
                self.unwanted = frozenset()
                warn(
                    f"{self.what} contain class {label}, which the model forgot earlier; leave them out, because "
                    "training on them teaches the class again."
                )


class UserBatches:
    """Batches of a user's loader. Each reading checks them and converts their labels to int64.

    Args:
        batches: Loader. Only training needs its length.
        rule: Labels that the images may have.
    """

    def __init__(self, batches: Iterable[Any], rule: LabelRule) -> None:
        self.batches: Any = batches
        self._rule = rule

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self._checked, self.batches)

    def _checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = checked_batch(batch)
        if labels.shape[1:] == (1,):
            labels = labels.squeeze(1)
        labels = labels.to(torch.int64)
        self._rule.check(labels)
        # Methods train a model of any precision in float32.
        return images.float() if images.is_floating_point() else images, labels


def join_batches(batches: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return batches of images and labels as one batch. Raise UsageError for images of several shapes."""
    return join_images([images for images, _ in batches]), torch.cat([labels for _, labels in batches])


def join_images(parts: Sequence[Tensor]) -> Tensor:
    """Return the images of several batches as one tensor. Raise UsageError for images of several shapes."""
    shapes = {tuple(images.shape[1:]) for images in parts}
    if len(shapes) > 1:
        raise UsageError(
            f"The batches have images of the shapes {' and '.join(map(str, sorted(shapes)))}; resize them to one shape."
        )
    return torch.cat(list(parts))


class MixedBatches:
    """Two sources of batches, with the images of the smaller source spread over the batches of the larger source.

    Batches of one source alone would have gradients that no batch of the whole data has.
    """

    def __init__(self, first: Iterable[tuple[Tensor, Tensor]], second: Iterable[tuple[Tensor, Tensor]]) -> None:
        counts = [(sum(len(labels) for _, labels in source), source) for source in (first, second)]
        (self._most, self._larger), (self._fewest, self._smaller) = sorted(counts, key=lambda one: -one[0])

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        smaller = iter(self._smaller)
        waiting: list[tuple[Tensor, Tensor]] = []
        read = used = 0
        for images, labels in self._larger:
            read += len(labels)
            # After this number of images, the same share of both sources is read.
            due = round(self._fewest * read / max(1, self._most)) - used
            while sum(len(part) for _, part in waiting) < due and (batch := next(smaller, None)) is not None:
                waiting.append(batch)
            if due > 0 and waiting:
                spare, spare_labels = join_batches(waiting)
                waiting = [(spare[due:], spare_labels[due:])]
                used += len(spare_labels[:due])
                taken = (spare[:due].to(images), spare_labels[:due].to(labels))
                images, labels = join_batches([(images, labels), taken])
            yield images, labels
