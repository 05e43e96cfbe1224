"""Data of an audit: samples by split, and the classes to forget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.classes import resolve_classes
from pour.data.draws import stratified_rows
from pour.data.samples import as_samples, first_batch, is_indexed
from pour.data.splits import Splits, class_names
from pour.errors import UsageError
from pour.models.card import class_names as names_of_model
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import forgotten_before
from pour.training.tasks.task import Task, find_task, get_task, task_of_labels

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.data.samples import Batches, IndexedSamples
    from pour.training.tasks.task import Dataset

__all__ = ["Audited", "audited_data"]

_FIRST = 64


@dataclass(frozen=True, eq=False)
class Audited:
    """Samples of an audit by split, and its classes."""

    task: Task[Any, Any]
    name: str
    """Name of the dataset."""
    classes: tuple[str, ...]
    """Names of all classes."""
    forgotten: tuple[int, ...]
    """Indices of the forgotten classes."""
    samples: Mapping[str, IndexedSamples | Batches]
    """Samples by split: `"test"`, then `"train"` and further test sets if the task has one label per sample."""
    class_counts: Mapping[int, int] = field(default_factory=dict)
    """Number of training samples of each class before a limit; empty without a limit."""
    _first: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def first(self, name: str) -> tuple[Tensor, Tensor]:
        """Return the first samples of a split, at most 64, and their labels. A loader is read for them once."""
        return _first_samples(name, self.samples[name], self._first)

    def indexed(self, reason: str) -> dict[str, IndexedSamples]:
        """Return the samples. Raise UsageError with `reason` if the samples of a split have no index."""
        indexed = {name: samples for name, samples in self.samples.items() if is_indexed(samples)}
        if missing := [name for name in self.samples if name not in indexed]:
            raise UsageError(
                f"{reason}, which needs samples with an index, but the {missing[0]} loader has none; pass its dataset."
            )
        return indexed

    def splits(self, what: str) -> Splits:
        """Return forget and retain samples by split. Raise UsageError if the step `what` cannot use the samples."""
        if not self.task.one_label:
            raise UsageError(f"{what} needs one label per sample, which the task {self.task.name} does not have.")
        return Splits.of(self.indexed(f"{what} chooses samples by class"), list(self.forgotten), classes=self.classes)

    def side_counts(self, samples: IndexedSamples) -> tuple[int, int]:
        """Return the number of samples with a forgotten class, and of the others."""
        forgotten = int(self.task.belongs(torch.as_tensor(samples.labels), self.forgotten).sum())
        return forgotten, len(samples) - forgotten

    def check_sides(self, name: str, counts: tuple[int, int]) -> None:
        """Raise UsageError if the test or training split has no forgotten or no retained sample."""
        for side, count in zip(("forgotten", "retained"), counts, strict=True):
            if not count and name in ("test", "train") and self.task.one_label:
                kind = {"train": "training"}.get(name, name)
                raise UsageError(
                    f"The {kind} split of {self.name} has no {self.task.unit} of the {side} classes to audit on."
                )

    def limited(self, limit: int | None, seed: int) -> Audited:
        """Return the data with at most `limit` forgotten and `limit` retained training samples, stratified by class."""
        if limit is None:
            return self
        train = self.splits("limit").train
        most = max(len(self.forgotten), len(self.classes) - len(self.forgotten))
        if limit < most:
            raise UsageError(
                f"A limit of {limit} training images per side is too small for {most} classes; pass at least {most}."
            )
        labels = train.whole.labels
        is_forgotten = np.isin(labels, self.forgotten)
        sides = [np.flatnonzero(side) for side in (is_forgotten, ~is_forgotten)]
        rows = np.sort(np.concatenate([side[stratified_rows(labels[side], limit, seed)] for side in sides]))
        counts = dict(enumerate(np.bincount(labels).tolist()))
        return replace(self, samples={**self.samples, "train": train.whole.take(rows)}, class_counts=counts)


def audited_data(
    data: Splits | Dataset | Mapping[str, Any],
    classes: ClassRequest | None,
    task: Task[Any, Any] | str | None,
    original: nn.Module,
    unlearned: nn.Module,
) -> Audited:
    """Return the data of an audit.

    Args:
        data: Splits, a dataset, or samples by split.
        classes: Forgotten classes; by default those classes that the splits or the history of `unlearned` name.
        task: Task or its name; by default the task of the data.
        original: Model before forgetting.
        unlearned: Model to audit.
    """
    if isinstance(task, str):
        task = get_task(task)
    if isinstance(data, Splits):
        request_or_default = data.forgotten if classes is None else classes
        named = resolve_classes(request_or_default, num_classes=data.num_classes, class_names=data.classes)
        if set(named) != set(data.forgotten):
            raise UsageError(
                f"classes names {sorted(named)}, but the splits were made for {sorted(data.forgotten)}; make the "
                "splits for the same classes, or leave classes out."
            )
        parts = {"test": data.test.whole, "train": data.train.whole}
        parts |= {name: part.whole for name, part in data.extra.items()}
        return _audited(data.name, data.classes, data.forgotten, task, parts)
    request = sorted(forgotten_before(unlearned)) if classes is None else classes
    if classes is None and not request:
        problem = "The unlearned model's history names no forgotten classes"
        if forgotten_before(original):
            raise UsageError(f"{problem}, but the original's does: they seem to be swapped; pass each in its role.")
        raise UsageError(f"{problem}; pass classes=.")
    if isinstance(data, Mapping):
        samples = {name: as_samples(part) for name, part in data.items()}
        names = class_names(data) or names_of_model(unlearned)
        if names is None:
            inputs, _ = first_batch(next(iter(samples.values())), FEW_IMAGES)
            names = tuple(map(str, range(head_on_images(unlearned, inputs).num_classes)))
        forgotten = resolve_classes(request, num_classes=len(names), class_names=names)
        return _audited("own data", names, forgotten, task, samples)
    if not hasattr(data, "splits") or not hasattr(data, "classes"):
        raise UsageError(
            f"An audit needs a test split and a train split, and a {type(data).__name__} has none; give "
            'data={"train": ..., "test": ...} with a dataset or a loader for each, or pour.Splits.of(dataset, classes).'
        )
    if task is None:
        test = data.splits.get("test")
        task = _task_of("test", test, {}) if is_indexed(test) else get_task(find_task(data.name))
    splits = {name: task.split(data, name) for name in _names(task, data.splits)}
    return _audited(data.name, tuple(data.classes), task.classes(data, request), task, splits)


def _audited(
    name: str,
    classes: tuple[str, ...],
    forgotten: tuple[int, ...],
    task: Task[Any, Any] | None,
    samples: Mapping[str, Any],
) -> Audited:
    first: dict[str, tuple[Tensor, Tensor]] = {}
    if task is None:
        one = next(iter(samples), "test")
        task = _task_of(one, samples.get(one, ()), first)
    parts = {split: samples[split] for split in _names(task, samples)}
    return Audited(task, name, classes, forgotten, parts, _first=first)


def _task_of(name: str, samples: IndexedSamples | Batches, first: dict[str, tuple[Tensor, Tensor]]) -> Task[Any, Any]:
    return get_task(task_of_labels(_first_samples(name, samples, first)[1]))


def _first_samples(
    name: str, samples: IndexedSamples | Batches, first: dict[str, tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return the first samples of a split from `first`. Add them to `first` if they are missing."""
    if name not in first:
        first[name] = first_batch(samples, _FIRST)
    return first[name]


def _names(task: Task[Any, Any], splits: Mapping[str, Any]) -> list[str]:
    """Return the splits that an audit reads, the test split first."""
    needed = ["test", "train"] if task.one_label else ["test"]
    for name in needed:
        if name not in splits:
            raise UsageError(f"The data have no {name} split, only {', '.join(splits) or 'none'}.")
    return [*needed, *(name for name in splits if name not in needed and task.one_label)]
