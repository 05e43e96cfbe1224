"""Forget and retain parts of a dataset's splits."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from pour.data.classes import ClassRequest, resolve_classes
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pour.data.dataset import ImageDataset, ImageSplit, LabelArray

__all__ = ["Part", "Splits"]


@dataclass(frozen=True, eq=False)
class Part:
    """One split, whole and divided into the images of forgotten classes and the others."""

    whole: ImageSplit
    forget: ImageSplit
    retain: ImageSplit

    @classmethod
    def of(cls, split: ImageSplit, forgotten: tuple[int, ...]) -> Part:
        """Divide ``split`` by whether the label is in ``forgotten``."""
        gone = np.isin(split.labels, forgotten)
        return cls(split, split.take(np.flatnonzero(gone)), split.take(np.flatnonzero(~gone)))


@dataclass(frozen=True, eq=False)
class Splits:
    """Forget and retain, times train and test and any extra test set.

    Everything shares the dataset's images: only row numbers are kept (see :class:`ImageSplit`).

    Example:
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
    """Further test sets by name, such as ``"external"``."""
    validation: Part | None = field(default=None, repr=False)
    """What :meth:`holdout` set apart from training."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class."""

    @classmethod
    def of(cls, dataset: ImageDataset, forget: ClassRequest) -> Splits:
        """Divide ``dataset`` by the classes to forget, given by name or index."""
        forgotten = resolve_classes(forget, num_classes=dataset.num_classes, class_names=dataset.classes)
        parts = {name: Part.of(split, forgotten) for name, split in dataset.splits.items()}
        train, test = parts.pop("train"), parts.pop("test")
        return cls(dataset.name, dataset.classes, forgotten, train, test, parts, mirrors=dataset.info.mirrors)

    @property
    def forget_train(self) -> ImageSplit:
        """Training images of the forgotten classes."""
        return self.train.forget

    @property
    def retain_train(self) -> ImageSplit:
        """Training images of the other classes."""
        return self.train.retain

    @property
    def forget_test(self) -> ImageSplit:
        """Test images of the forgotten classes."""
        return self.test.forget

    @property
    def retain_test(self) -> ImageSplit:
        """Test images of the other classes."""
        return self.test.retain

    @property
    def forgotten_names(self) -> tuple[str, ...]:
        """Names of the classes to forget."""
        return tuple(self.classes[label] for label in self.forgotten)

    @property
    def num_classes(self) -> int:
        """Number of classes, the forgotten ones included."""
        return len(self.classes)

    def limit(self, n: int, seed: int) -> Splits:
        """Keep at most ``n`` images of every split, each class in proportion and with at least one image.

        For trying things out: the draw is the same for the same ``seed``.
        """
        if n < self.num_classes:
            raise UsageError(f"A limit of {n} images leaves none for some of {self.num_classes} classes; raise it.")

        def fewer(split: ImageSplit) -> LabelArray:
            return _draw(split.labels, min(n, len(split)), seed)

        return replace(
            self,
            train=self._chosen(self.train, fewer),
            test=self._chosen(self.test, fewer),
            extra={name: self._chosen(part, fewer) for name, part in self.extra.items()},
            validation=None if self.validation is None else self._chosen(self.validation, fewer),
        )

    def holdout(self, fraction: float, seed: int) -> Splits:
        """Move a share of each class's training images to ``validation``, for tuning without the test split.

        Every class keeps training images and gets validation images, which needs two images of it.
        """
        if not 0 < fraction < 1:
            raise UsageError(f"The share to hold out must be between 0 and 1, not {fraction}.")
        labels = self.train.whole.labels
        counts = np.bincount(labels, minlength=self.num_classes)
        if counts.min() < 2:
            scarce = self.classes[int(counts.argmin())]
            raise UsageError(f"{scarce!r} has {counts.min()} training image; holding some out needs at least two.")
        # At least one image of each class on either side.
        quotas = np.clip(np.rint(counts * fraction).astype(np.int64), 1, counts - 1)
        held = _pick(labels, quotas, seed)
        kept = np.setdiff1d(np.arange(len(labels)), held, assume_unique=True)
        return replace(
            self,
            train=self._chosen(self.train, lambda _: kept),
            validation=self._chosen(self.train, lambda _: held),
        )

    def _chosen(self, part: Part, rows: Callable[[ImageSplit], LabelArray]) -> Part:
        return Part.of(part.whole.take(rows(part.whole)), self.forgotten)


def _draw(labels: LabelArray, n: int, seed: int) -> LabelArray:
    """Return ``n`` rows, each class in proportion by largest remainders but with at least one row."""
    counts = np.bincount(labels)
    shares = counts * (n / max(1, len(labels)))
    quotas = np.maximum(np.floor(shares).astype(np.int64), counts > 0)
    by_need = np.argsort(quotas - shares, kind="stable")
    while quotas.sum() < n:
        for label in by_need:
            if quotas[label] < counts[label] and quotas.sum() < n:
                quotas[label] += 1
    while quotas.sum() > n:
        quotas[np.argmax(quotas)] -= 1
    return _pick(labels, quotas, seed)


def _pick(labels: LabelArray, quotas: LabelArray, seed: int) -> LabelArray:
    generator = np.random.default_rng(seed)
    rows = [
        generator.permutation(np.flatnonzero(labels == label))[:quota] for label, quota in enumerate(quotas.tolist())
    ]
    return np.sort(np.concatenate(rows)) if rows else np.empty(0, np.int64)
