"""Labelled samples: data that can be read in batches, and data whose samples can also be chosen by index.

A user's ``DataLoader`` can only be read, and each reading may shuffle or augment. Images in memory, scenes and torch
datasets are *indexed samples*: they have a length, labels and rows.
"""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pour.data.loader import EpochLoader
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from typing import Self

    from numpy.typing import NDArray
    from typing_extensions import TypeIs

__all__ = [
    "Batches",
    "DatasetSamples",
    "IndexedSamples",
    "as_samples",
    "checked_batch",
    "first_batch",
    "is_indexed",
]

Batches: TypeAlias = "Iterable[tuple[Tensor, Tensor]]"
"""Pairs of inputs and labels, such as a DataLoader gives. Each iteration is one reading of the data."""

_SAMPLES_PER_PART = 4096


class IndexedSamples(Protocol):
    """Samples that can be counted, chosen by index, filtered by class and read in any order."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images, (n, height, width, channels)."""
        ...

    @property
    def labels(self) -> NDArray[Any]:
        """Labels; the first dimension counts the samples."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def take(self, rows: NDArray[Any]) -> Self:
        """Return the samples with these indices, in this order."""
        ...

    def without(self, classes: Collection[int]) -> Self:
        """Return the samples without the labels ``classes``."""
        ...

    def batches(
        self,
        batch_size: int,
        device: torch.device | str,
        *,
        seed: int = 0,
        shuffle: bool = False,
        augment: bool = False,
        mirrors: bool = True,
        drop_last: bool = False,
    ) -> EpochLoader:
        """Return a loader of (inputs, labels).

        Args:
            batch_size: Number of samples per batch.
            device: Device of the batches.
            seed: Fixes everything random.
            shuffle: Draw a new order for each epoch.
            augment: Move images at random, if they are images of pour.
            mirrors: Whether a mirrored image still shows its class.
            drop_last: Leave out a last batch that is not full.
        """
        ...


def is_indexed(data: object) -> TypeIs[IndexedSamples]:
    """Return whether ``data`` are indexed samples. Only methods are looked up, because ``images`` reads all images."""
    return all(hasattr(type(data), name) for name in ("__len__", "take", "without", "batches"))


def as_samples(data: Any) -> IndexedSamples | Batches:
    """Return indexed samples if ``data`` has them or is a dataset with indices, otherwise ``data`` itself.

    Raises:
        UsageError: ``data`` can neither be indexed nor iterated more than once.
    """
    if is_indexed(data):
        return data
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, list | tuple | dict | str):
        return DatasetSamples(data)
    if not hasattr(data, "__iter__"):
        raise UsageError(f"Data must be a dataset or a loader of batches, not a {type(data).__name__}.")
    # Calling iter() would draw the random seed of a DataLoader.
    if hasattr(data, "__next__"):
        raise UsageError("The data must be batches that can be read more than once, such as a DataLoader.")
    batches: Batches = data
    return batches


class DatasetSamples:
    """Indexed samples of a torch dataset, or of any object that returns (input, label) by index.

    An input that is a tensor reaches the model unchanged. A PIL image or a uint8 array (height x width x channels)
    becomes a uint8 tensor (channels x height x width). Samples are read when they are needed.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> samples = DatasetSamples(TensorDataset(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 2])))
        >>> len(samples), samples.labels.tolist(), len(samples.without([0]))
        (4, [0, 1, 0, 2], 2)
    """

    def __init__(self, dataset: Any, rows: NDArray[np.int64] | None = None, labels: NDArray[Any] | None = None) -> None:
        self.dataset = dataset
        self.rows = np.arange(len(dataset)) if rows is None else rows
        self._labels = labels

    @property
    def labels(self) -> NDArray[Any]:
        """Labels of all samples. The first use reads every sample, because a dataset need not list its labels."""
        if self._labels is None:
            read = [np.asarray(self[i][1]) for i in range(len(self))]
            self._labels = np.stack(read) if read else np.empty(0, np.int64)
        return self._labels

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images, (n, height, width, channels); reads every sample, and raises if the inputs are no uint8."""
        inputs = torch.cat([batch for batch, _ in self.batches(_SAMPLES_PER_PART, "cpu")])
        if inputs.dtype != torch.uint8:
            raise UsageError(f"The dataset has {inputs.dtype} inputs, but this needs images of uint8.")
        return inputs.permute(0, 2, 3, 1).numpy()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the input and the label of sample ``i``."""
        item = self.dataset[int(self.rows[i])]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise UsageError("Each sample of a dataset must be a pair of an input and a label.")
        label = torch.as_tensor(item[1])
        if label.is_floating_point() or label.is_complex():
            raise UsageError(f"The labels of a dataset must be whole numbers, not {label.dtype}.")
        return _as_input(item[0]), label.to(torch.int64)

    def take(self, rows: NDArray[Any]) -> DatasetSamples:
        """Return the samples with these indices, in this order; nothing is read."""
        return DatasetSamples(self.dataset, self.rows[rows], None if self._labels is None else self._labels[rows])

    def without(self, classes: Collection[int]) -> DatasetSamples:
        """Return the samples of other classes. The dataset must have one label per sample."""
        return self.take(np.flatnonzero(~np.isin(self.labels, list(classes))))

    def batches(
        self,
        batch_size: int,
        device: torch.device | str,
        *,
        augment: bool = False,
        mirrors: bool = True,
        **options: Any,
    ) -> EpochLoader:
        """Return a loader of the samples; the dataset's own transforms replace ``augment`` and ``mirrors``."""
        return _DatasetLoader(self, batch_size=batch_size, device=device, **options)


class _DatasetLoader(EpochLoader):
    def __init__(self, samples: DatasetSamples, **options: Any) -> None:
        super().__init__(len(samples), **options)
        self._samples = samples

    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs, labels = zip(*(self._samples[row] for row in order.tolist()), strict=True)
        if len({tensor.shape for tensor in inputs}) > 1:
            raise UsageError(
                f"The dataset has inputs of shapes {tuple(inputs[0].shape)} and others; bring them to one shape first."
            )
        return torch.stack(inputs).to(self.device), torch.stack(labels).to(self.device)


def _as_input(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise UsageError(
            f"An input of a dataset must be a tensor, an image or a uint8 array, not a {type(value).__name__}."
        )
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).copy()).permute(2, 0, 1)


def first_batch(
    samples: IndexedSamples | Batches, count: int, *, loader: object | None = None
) -> tuple[Tensor, Tensor]:
    """Return at most ``count`` inputs and labels. Later readings give the same batches as without this call.

    Args:
        samples: Samples or batches.
        count: Largest number of samples.
        loader: Loader whose random generators are restored; by default ``samples``.

    Raises:
        UsageError: There are no samples.
    """
    if is_indexed(samples):
        if not len(samples):
            raise UsageError("There are no samples to read.")
        return next(iter(samples.take(np.arange(min(count, len(samples)))).batches(count, "cpu")))
    with _undisturbed(samples if loader is None else loader):
        # Iterating a loader of pour would start its next epoch.
        epoch = getattr(samples, "epoch", None)
        first: Any = next(epoch(0) if callable(epoch) else iter(samples), None)
    if first is None:
        raise UsageError("The loader holds no batches; give some images.")
    images, labels = checked_batch(first)
    return images[:count], labels[:count]


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch. Raise UsageError if the batch is something else."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise UsageError("Each batch must be a pair of images and labels, as a DataLoader gives.")
    images, labels = batch[0], torch.as_tensor(batch[1])
    if not isinstance(images, Tensor):
        raise UsageError(f"The images of a batch must be a tensor, not a {type(images).__name__}.")
    if labels.ndim == 0 or len(images) != len(labels):
        raise UsageError(f"A batch has {len(images)} images and labels of shape {tuple(labels.shape)}.")
    return images, labels


@contextlib.contextmanager
def _undisturbed(loader: object) -> Iterator[None]:
    """Restore the global random generators, and those of a DataLoader and its samplers, after the block."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(generator, generator.get_state()) for generator in generators if isinstance(generator, torch.Generator)]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)
