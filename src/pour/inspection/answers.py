"""Count the answers of a model to a few labelled samples by true and predicted class."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pour.metrics.intervals import Estimate, wilson
from pour.models.copy_and_swap import in_float32
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import on_device, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from numpy.typing import NDArray
    from torch import nn

    from pour.training.tasks.task import Task

__all__ = ["Answers", "Sample", "enough", "rate_of", "read_answers"]

# Largest and smallest number of samples, and the number of pixels that limits it for large images.
_MOST, _FEWEST = 256, 16
_PIXELS = _MOST * 128**2
# Inputs of at most this size stay in memory.
_KEPT_BYTES = 64 * 2**20


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of a model, as counts of labelled units by sample, true class and predicted class."""

    samples: NDArray[np.int64]
    """Index of the sample of each count."""
    truth: NDArray[np.int64]
    """True class of each count."""
    predicted: NDArray[np.int64]
    """Predicted class of each count."""
    counts: NDArray[np.int64]
    """Number of units, such as pixels, with this sample, truth and answer."""
    num_classes: int
    """Number of scores of the model."""
    confidence: float = 0.0
    """Mean probability of the predicted class."""

    @property
    def shown(self) -> list[int]:
        """Classes of the samples."""
        return [int(label) for label in np.unique(self.truth)]

    def __len__(self) -> int:
        """Number of samples."""
        return len(np.unique(self.samples))

    def where(self, mask: NDArray[np.bool_]) -> Answers:
        """Return the answers whose counts `mask` selects."""
        parts = (self.samples[mask], self.truth[mask], self.predicted[mask], self.counts[mask])
        return Answers(*parts, self.num_classes, self.confidence)

    def of(self, classes: Collection[int], *, others: bool = False) -> Answers:
        """Return the answers to units whose true class is in `classes`, or to all other units if `others`."""
        return self.where(np.isin(self.truth, list(classes), invert=others))

    def accuracy(self) -> Estimate:
        """Return the share of right answers. Its interval counts samples: the units of one sample are similar."""
        return rate_of(self.counts[self.truth == self.predicted].sum() / max(1, self.counts.sum()), len(self))

    def share(self, classes: Collection[int]) -> Estimate:
        """Return the share of answers that are one of `classes`."""
        return rate_of(self.counts[np.isin(self.predicted, list(classes))].sum() / max(1, self.counts.sum()), len(self))

    def frequent(self) -> tuple[int, float]:
        """Return the most frequent answer and its share."""
        totals = np.bincount(self.predicted, weights=self.counts, minlength=self.num_classes)
        return int(totals.argmax()), float(totals.max() / max(1, totals.sum()))

    def agreement(self) -> Estimate:
        """Return Cohen's kappa: 0 if answers do not depend on the true class, 1 if all of them are right.

        Examples:
            >>> constant = Answers(*np.array([[0, 1, 2, 3], [0, 0, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]), num_classes=2)
            >>> constant.agreement().value
            0.0
        """
        total = max(1, self.counts.sum())
        size = self.num_classes
        rows = np.bincount(self.truth, weights=self.counts, minlength=size) / total
        columns = np.bincount(self.predicted, weights=self.counts, minlength=size) / total
        chance = float(rows @ columns)
        if chance >= 1:
            return Estimate(1.0, 1.0, 1.0)
        accuracy = self.accuracy()
        return Estimate(*((end - chance) / (1 - chance) for end in (accuracy.value, accuracy.low, accuracy.high)))

    def table(self) -> NDArray[np.float64]:
        """Return the share of each answer (column) for every class of the samples (row)."""
        classes = self.shown
        table = np.zeros((len(classes), self.num_classes))
        np.add.at(table, (np.searchsorted(classes, self.truth), self.predicted), self.counts)
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def right(self) -> NDArray[np.float64]:
        """Return the share of right answers of each sample, in the order of the samples."""
        numbers = np.searchsorted(np.unique(self.samples), self.samples)
        right, total = (
            np.bincount(numbers, weights=self.counts * mask) for mask in (self.truth == self.predicted, True)
        )
        return np.asarray(right / total)


def rate_of(rate: float, n: int) -> Estimate:
    """Return a rate over `n` samples with its interval; NaN if there are no samples."""
    return wilson(round(float(rate) * n), n) if n else Estimate(float("nan"), 0.0, 1.0)


def enough(image: Tensor) -> int:
    """Return the number of forgotten and of retained samples to read: fewer if an image is large.

    Examples:
        >>> enough(torch.zeros(3, 32, 32)), enough(torch.zeros(3, 224, 224))
        (256, 83)
    """
    return max(_FEWEST, min(_MOST, _PIXELS // max(1, image[:1].numel())))


@dataclass(eq=False)
class Sample:
    """A few samples that are read once. The first of them stay in memory for further measurements."""

    batches: Iterable[tuple[Tensor, Tensor]]
    task: Task[Any, Any]
    device: torch.device
    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    """Batches that stay in memory."""
    answered: Answers | None = None
    """Answers of the model that read the batches."""

    def answers(self, model: nn.Module) -> Answers | None:
        """Return the answers of `model`. Inputs up to a memory limit are kept."""
        return read_answers(model, self._keeping(), self.task, self.device)

    def again(
        self, model: nn.Module, change: Callable[[Tensor], Tensor] | None = None, count: int | None = None
    ) -> Answers | None:
        """Return the answers of `model` to the first `count` kept inputs after `change`."""
        batches = [(inputs[: max(0, end)], labels[: max(0, end)]) for inputs, labels, end in self._ends(count)]
        return read_answers(model, [batch for batch in batches if len(batch[1])], self.task, self.device, change)

    def only(self, classes: Collection[int]) -> Sample:
        """Return the kept samples that show one of `classes`."""
        masks = [(inputs, labels, self.task.belongs(labels, classes)) for inputs, labels in self.kept]
        parts = [(inputs[mask], labels[mask]) for inputs, labels, mask in masks if bool(mask.any())]
        return Sample((), self.task, self.device, parts)

    def _ends(self, count: int | None) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield the kept batches, each with the number of its samples that are among the first `count`."""
        for inputs, labels in self.kept:
            size = len(labels) if count is None else count
            yield inputs, labels, size
            count = None if count is None else count - len(labels)

    def _keeping(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield all batches, and keep the first ones."""
        free = _KEPT_BYTES
        for inputs, labels in self.batches:
            free -= inputs.numel() * inputs.element_size()
            # A batch after the limit is never kept, so that the kept samples are the first samples.
            if free >= 0:
                self.kept.append((inputs, labels))
            yield inputs, labels


def read_answers(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    task: Task[Any, Any],
    device: torch.device,
    change: Callable[[Tensor], Tensor] | None = None,
) -> Answers | None:
    """Return the answers of `model`; Return None if the task has no single answers, or if scores are not finite.

    Args:
        model: Any classifier. It is not changed.
        batches: Inputs and labels.
        task: Task of the labels.
        device: Device of the computation.
        change: Change of the inputs as floats.
    """
    network = in_float32(unwrap(model))
    parts: list[Tensor] = []
    confidences: list[float] = []
    first, classes = 0, 0
    with on_device(network, device), evaluating(network), torch.inference_mode():
        for inputs, labels in batches:
            images = to_unit(inputs.to(device))
            images = images.float() if images.is_floating_point() else images
            scores = scores_of(network(images if change is None else change(images))).float()
            if scores.ndim < 2 or not torch.isfinite(scores).all():
                return None
            judged = task.judged(scores, labels.to(device))
            if judged is None:
                return None
            truth, predicted, sample = (part.to(torch.int64) for part in judged)
            classes = scores.shape[1]
            codes, counts = torch.unique(torch.stack([sample + first, truth, predicted]), dim=1, return_counts=True)
            parts.append(torch.cat([codes, counts[None]]).cpu())
            confidences.append(float(scores.softmax(dim=1).amax(dim=1).mean()) * len(labels))
            first += len(labels)
    if not parts or not (columns := torch.cat(parts, dim=1).numpy()).shape[1]:
        return None
    samples, truth, predicted, counts = columns
    return Answers(samples, truth, predicted, counts, num_classes=classes, confidence=sum(confidences) / first)
