"""Forget and retain parts of a dataset's splits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pour.data.classes import ClassRequest, resolve_classes
from pour.data.draws import rows_per_class, set_apart
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.data.dataset import LabelArray
    from pour.data.samples import IndexedSamples

__all__ = ["Part", "Splits", "class_names", "hold_out", "numbered_names"]

SamplesT = TypeVar("SamplesT", bound="IndexedSamples")


@dataclass(frozen=True, eq=False)
class Part:
    """One split, whole and divided into the samples of forgotten classes and the others."""

    whole: IndexedSamples
    forget: IndexedSamples
    retain: IndexedSamples

    @classmethod
    def of(cls, split: IndexedSamples, forgotten: tuple[int, ...]) -> Part:
        """Divide `split` by the samples whose labels include a class of `forgotten`."""
        is_forgotten = np.isin(split.labels, forgotten).reshape(len(split), -1).any(axis=1)
        return cls(split, split.take(np.flatnonzero(is_forgotten)), split.take(np.flatnonzero(~is_forgotten)))


@dataclass(frozen=True, eq=False)
class Splits:
    """Forget and retain parts of the training split, the test split and any further test set.

    The parts share the dataset's images; only row numbers are stored (see `ImageSplit`).

    Examples:
        >>> from pour.data import load_dataset
        >>> splits = Splits.of(load_dataset("digits"), forget=["3"])
        >>> len(splits.forget_train), len(splits.retain_train), set(splits.forget_test.labels.tolist())
        (147, 1295, {3})
    """

    name: str
    """Name of the dataset."""
    classes: tuple[str, ...]
    """Names of all classes, the forgotten ones included."""
    forgotten: tuple[int, ...]
    """Labels of the classes to forget."""
    train: Part = field(repr=False)
    test: Part = field(repr=False)
    extra: Mapping[str, Part] = field(default_factory=dict, repr=False)
    """Further test sets by name, such as `"external"`."""
    validation: Part | None = field(default=None, repr=False)
    """Images that `holdout` moved out of the training split."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class."""

    @classmethod
    def of(
        cls,
        dataset: Any,
        forget: ClassRequest,
        *,
        classes: Sequence[str] | None = None,
    ) -> Splits:
        """Divide a dataset by the classes to forget.

        Args:
            dataset: A dataset of pour, or torch datasets by split: `{"train": ..., "test": ...}`. Of a single torch
                dataset, a fifth of each class is the test split. It depends on the file names, as for `--data FOLDER`,
                or on the positions if there are no files. Train only on the rest.
            forget: Classes by name or index.
            classes: Names of all classes. By default the names in the dataset, otherwise the numbers from 0.

        Raises:
            UsageError: A split is missing, or has no indices (a loader), so that it cannot be divided.

        Examples:
            >>> import torch
            >>> from torch.utils.data import TensorDataset
            >>> data = TensorDataset(torch.rand(6, 3, 8, 8), torch.arange(6) % 3)
            >>> Splits.of({"train": data, "test": data}, forget=[2]).forgotten_names
            ('2',)
        """
        mirrors, name = True, "own data"
        if not hasattr(dataset, "splits"):
            splits = _indexed(dataset if isinstance(dataset, Mapping) else _divided(dataset))
            names = tuple(classes or class_names(splits) or numbered_names(splits))
        else:
            if classes is not None:
                raise UsageError(f"{dataset.name} already has class names; leave classes= out.")
            splits, names = dict(dataset.splits), dataset.classes
            mirrors, name = dataset.info.mirrors, dataset.name
        forgotten = resolve_classes(forget, num_classes=len(names), class_names=names)
        parts = {split: Part.of(samples, forgotten) for split, samples in splits.items()}
        train, test = parts.pop("train"), parts.pop("test")
        return cls(name, names, forgotten, train, test, parts, mirrors=mirrors)

    @property
    def forget_train(self) -> IndexedSamples:
        """Training samples of the forgotten classes."""
        return self.train.forget

    @property
    def retain_train(self) -> IndexedSamples:
        """Training samples of the other classes."""
        return self.train.retain

    @property
    def forget_test(self) -> IndexedSamples:
        """Test samples of the forgotten classes."""
        return self.test.forget

    @property
    def retain_test(self) -> IndexedSamples:
        """Test samples of the other classes."""
        return self.test.retain

    @property
    def forgotten_names(self) -> tuple[str, ...]:
        """Names of the classes to forget."""
        return tuple(self.classes[label] for label in self.forgotten)

    @property
    def num_classes(self) -> int:
        """Number of classes, the forgotten ones included."""
        return len(self.classes)

    def holdout(self, fraction: float, seed: int) -> Splits:
        """Move a share of each class's training images to `validation`, for tuning without the test split.

        Every class keeps training images and gets validation images, so every class needs two images.
        """
        whole = self.train.whole
        parts = hold_out(whole, whole.labels, self.classes, fraction, seed)
        train, validation = (Part.of(samples, self.forgotten) for samples in parts)
        return replace(self, train=train, validation=validation)


def hold_out(
    samples: SamplesT, groups: LabelArray, names: Sequence[str], fraction: float, seed: int
) -> tuple[SamplesT, SamplesT]:
    """Divide samples into training samples and held-out samples, with a share of each group.

    Args:
        samples: Training samples.
        groups: Group of each sample, such as its class.
        names: Names of the groups that need samples in both parts.
        fraction: Share of the held-out samples.
        seed: Fixes the choice.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"The share to hold out must be between 0 and 1, not {fraction}.")
    counts = np.bincount(groups, minlength=len(names))
    scarce = int(counts[: len(names)].argmin())
    if counts[scarce] < 2:
        raise UsageError(f"{names[scarce]!r} has {counts[scarce]} training image; holding some out needs at least two.")
    # Both parts need at least one sample of each group.
    quotas = np.clip(np.rint(counts * fraction).astype(np.int64), 1, np.maximum(counts - 1, 0))
    held = np.sort(rows_per_class(groups, dict(enumerate(quotas.tolist())), np.random.default_rng(seed)))
    others = np.setdiff1d(np.arange(len(groups)), held, assume_unique=True)
    return samples.take(others), samples.take(held)


def _indexed(parts: Mapping[str, Any]) -> dict[str, IndexedSamples]:
    """Return the indexed samples of each split, or raise UsageError."""
    from pour.data.samples import as_samples, is_indexed

    for needed in ("train", "test"):
        if needed not in parts:
            raise UsageError(f"The data have no {needed} split, only {', '.join(parts) or 'none'}.")
    splits = {name: as_samples(part) for name, part in parts.items()}
    indexed = {name: samples for name, samples in splits.items() if is_indexed(samples)}
    if missing := [name for name in splits if name not in indexed]:
        raise UsageError(
            f"The {missing[0]} split is a {type(parts[missing[0]]).__name__}, whose samples have no index, so it "
            "cannot be divided into forget and retain parts; pass the dataset that it reads."
        )
    return indexed


def _divided(dataset: Any) -> dict[str, IndexedSamples]:
    """Return a dataset without splits as training samples and a fifth of each class for testing."""
    from pour.data.samples import as_samples, is_indexed

    samples = as_samples(dataset)
    if not is_indexed(samples) or samples.labels.ndim != 1:
        raise UsageError(
            f"A {type(dataset).__name__} cannot be divided into training and test samples; pass datasets by split, "
            '{"train": ..., "test": ...}.'
        )
    files = getattr(dataset, "samples", None)
    if isinstance(files, list) and len(files) == len(samples):
        names = [os.fsencode(os.path.basename(file)) for file, _ in files]  # noqa: PTH119
    else:
        names = [str(row).encode() for row in range(len(samples))]
    train, test = set_apart(samples.labels, names)
    if not len(test):
        raise UsageError("Every class has fewer than 5 samples, too few for a test split; add some.")
    return {"train": samples.take(train), "test": samples.take(test)}


def class_names(parts: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Return the class names that a dataset, or the dataset of a loader or subset, lists. None without names."""
    for part in parts.values():
        source = part
        while source is not None:
            listed = getattr(source, "classes", None)
            if listed is None:
                # A dataset of Hugging Face describes its columns.
                columns = getattr(source, "features", None)
                named = columns.values() if isinstance(columns, Mapping) else ()
                listed = next((column.names for column in named if hasattr(column, "names")), None)
            source = getattr(source, "dataset", None)
            if isinstance(listed, list | tuple) and all(isinstance(name, str) for name in listed):
                return tuple(listed)
    return None


def numbered_names(splits: Mapping[str, IndexedSamples]) -> tuple[str, ...]:
    """Return the numbers up to the highest label of all splits, as names of the classes."""
    return tuple(map(str, range(1 + max(int(samples.labels.max(initial=0)) for samples in splits.values()))))
