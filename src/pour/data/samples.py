"""Labelled samples: data that can be read in batches, and data whose samples can also be selected by index.

A user's `DataLoader` can only be read in batches, and each reading may shuffle or augment. Images in memory, scenes and
torch datasets are *indexed samples*: they have a length, labels and rows.

A batch, and a sample of a dataset, is a pair of images and labels, or an object with fields of the usual names: a
dictionary (as in datasets of Hugging Face), a named tuple or a dataclass. The model gets the images alone, as its first
argument.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

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
    "as_batches",
    "as_samples",
    "check_values",
    "checked_batch",
    "first_batch",
    "is_indexed",
    "some_batches",
]

Batches: TypeAlias = "Iterable[tuple[Tensor, Tensor]]"
"""Pairs of inputs and labels, as a DataLoader yields them. Each iteration is one reading of the data."""

_SAMPLES_PER_PART = 4096
_IMAGES = ("pixel_values", "images", "image", "img", "inputs", "input", "x")
_LABELS = ("labels", "label", "targets", "target", "y")
# Endings of the names of further inputs, which change the model's output for the same images.
_FURTHER_INPUTS = ("mask", "masked_pos", "input_ids")
# No caller is likely to use this seed. So random augmentation does not repeat these draws in a later reading.
_SEED_OF_FIRST_BATCH = 0x706F7572


class IndexedSamples(Protocol):
    """Samples that can be counted, selected by index, filtered by class and read in any order."""

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
        """Return the samples without the labels `classes`."""
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
    """Return whether `data` are indexed samples. Only methods are looked up, because `images` reads all images."""
    return all(hasattr(type(data), name) for name in ("__len__", "take", "without", "batches"))


def as_samples(data: Any) -> IndexedSamples | Batches:
    """Return `data` as indexed samples if it is a dataset with indices, otherwise `data` itself.

    Raises:
        UsageError: `data` can neither be indexed nor iterated more than once.
    """
    if is_indexed(data):
        return data
    if isinstance(data, Tensor | np.ndarray | str):
        raise UsageError(
            f"Data are images with labels, and a {type(data).__name__} alone is neither a dataset nor a loader; pass "
            "torch.utils.data.TensorDataset(images, labels), or another dataset or DataLoader."
        )
    if isinstance(data, list | tuple) and len(data) == 2 and all(isinstance(part, Tensor) for part in data):
        raise UsageError("Data are a pair of tensors; pass torch.utils.data.TensorDataset(images, labels).")
    if isinstance(data, Mapping):
        raise UsageError("Data are one batch, not a loader of batches; put it into a list.")
    if not isinstance(data, list | tuple | IterableDataset) and hasattr(data, "__getitem__"):
        if hasattr(data, "__len__"):
            return DatasetSamples(data)
        if not hasattr(data, "__iter__"):
            raise UsageError(f"The dataset {type(data).__name__} has no length; add the method __len__ to it.")
    if not hasattr(data, "__iter__"):
        raise UsageError(f"Data must be a dataset or a loader of batches, not a {type(data).__name__}.")
    # Calling iter() would draw the random seed of a DataLoader.
    if hasattr(data, "__next__"):
        raise UsageError("The data can be read only once; pass batches that can be read again, such as a DataLoader.")
    batches: Batches = data
    return batches


def as_batches(data: Any, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the batches of one reading of a dataset, a loader or an iterator.

    Args:
        data: Indexed samples, a dataset, or batches.
        batch_size: Number of samples per batch, for data that do not come in batches.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.zeros(3, 4), torch.arange(3))
        >>> [labels.tolist() for images, labels in as_batches(data, 2)]
        [[0, 1], [2]]
    """
    samples = data if hasattr(data, "__next__") else as_samples(data)
    return iter(samples.batches(batch_size, "cpu")) if is_indexed(samples) else map(checked_batch, samples)


class DatasetSamples:
    """Indexed samples of a torch dataset, or of any object that returns samples by index.

    An input that is a tensor reaches the model unchanged. A PIL image or a uint8 array (height x width x channels)
    becomes a uint8 tensor (channels x height x width). Samples are read when they are needed.

    Args:
        dataset: Object with a length whose items are samples.
        rows: Indices of the samples; by default all.
        labels: Labels of these samples, if they are known.

    Examples:
        >>> from torch.utils.data import TensorDataset
        >>> samples = DatasetSamples(TensorDataset(torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 0, 2])))
        >>> len(samples), samples.labels.tolist(), len(samples.without([0]))
        (4, [0, 1, 0, 2], 2)
    """

    def __init__(self, dataset: Any, rows: NDArray[np.int64] | None = None, labels: NDArray[Any] | None = None) -> None:
        self.dataset = dataset
        self.rows = np.arange(len(dataset)) if rows is None else rows
        self._labels = _listed_labels(dataset) if rows is None and labels is None else labels
        self._read: dict[int, NDArray[Any]] = {}

    @property
    def labels(self) -> NDArray[Any]:
        """Labels of all samples. If the dataset does not list them, the samples that no batch contained are read."""
        if self._labels is None:
            read = [self._read[i] if i in self._read else self[i][1].numpy() for i in range(len(self))]
            self._labels = np.stack(read) if read else np.empty(0, np.int64)
            self._read = {}
        return self._labels

    @property
    def knows_labels(self) -> bool:
        """Whether the labels are known without reading a sample."""
        return self._labels is not None or len(self._read) == len(self)

    @property
    def images(self) -> NDArray[np.uint8]:
        """All images, (n, height, width, channels). Every sample is read. Raises UsageError unless they are uint8."""
        inputs = torch.cat([batch for batch, _ in self.batches(_SAMPLES_PER_PART, "cpu")])
        if inputs.dtype != torch.uint8:
            raise UsageError(f"The dataset has {inputs.dtype} inputs; convert them to uint8 images for this use.")
        return inputs.permute(0, 2, 3, 1).numpy()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return the input and the label of sample `i`."""
        image, label = _image_and_label(self.dataset[int(self.rows[i])], "sample of a dataset")
        if label.is_floating_point() or label.is_complex():
            raise UsageError(f"The labels of a dataset must be whole numbers, not {label.dtype}.")
        label = label.to(torch.int64)
        if self._labels is None and label.ndim < 2:
            self._read[int(i)] = label.numpy()
        return _as_input(image), label

    def take(self, rows: NDArray[Any]) -> DatasetSamples:
        """Return the samples with these indices, in this order. No sample is read."""
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
        """Return a loader of the samples. `augment` and `mirrors` are ignored: the dataset has its own transforms."""
        return _DatasetLoader(self, batch_size=batch_size, device=device, **options)


class _DatasetLoader(EpochLoader):
    def __init__(self, samples: DatasetSamples, **options: Any) -> None:
        super().__init__(len(samples), **options)
        self._samples = samples

    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs, labels = zip(*(self._samples[row] for row in order.tolist()), strict=True)
        if len({tensor.shape for tensor in inputs}) > 1:
            raise UsageError(
                f"The dataset has inputs of shapes {tuple(inputs[0].shape)} and others; resize them to one shape first."
            )
        images = torch.stack(inputs)
        check_values(images)
        return images.to(self.device), torch.stack(labels).to(self.device)


def _listed_labels(dataset: Any) -> NDArray[Any] | None:
    """Return the labels that a dataset of torch or torchvision lists, or None if only its samples contain them."""
    kind = type(dataset)
    if kind is Subset:
        whole = _listed_labels(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, np.int64)]
    listed: Any = None
    if kind is TensorDataset and len(dataset.tensors) == 2:
        listed = dataset.tensors[1].cpu()
    # In another class, or with a transform of the labels, samples may have other labels than the list.
    elif getattr(getattr(kind, "__getitem__", None), "__module__", "").startswith("torchvision.datasets."):
        transforms = getattr(dataset, "transforms", None)
        if getattr(transforms, "target_transform", transforms) is None:
            listed = getattr(dataset, "targets", None)
    if listed is None or len(listed) != len(dataset):
        return None
    labels = np.asarray(listed)
    return labels.astype(np.int64) if labels.ndim == 1 and labels.dtype.kind in "iu" else None


def _as_input(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    pixels = np.asarray(value)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3):
        raise UsageError(
            f"An input of a dataset must be a tensor, an image or a uint8 array, not a {type(value).__name__}; convert "
            "it in the dataset's transform."
        )
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], -1).copy()).permute(2, 0, 1)


def first_batch(
    samples: IndexedSamples | Batches, count: int, *, loader: object | None = None
) -> tuple[Tensor, Tensor]:
    """Return at most `count` inputs and labels. Later readings return the same batches as without this call.

    Args:
        samples: Samples or batches.
        count: Largest number of samples.
        loader: Loader whose random generators are restored; by default `samples`.

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
        raise UsageError("The loader contains no batches; pass some images.")
    images, labels = checked_batch(first)
    return images[:count], labels[:count]


def some_batches(
    samples: IndexedSamples | Batches, count: int, size: int, *, loader: object | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of about `count` samples: evenly spaced indexed samples, or the first batches of a loader.

    Later readings return the same batches as without this call.

    Args:
        samples: Samples or batches.
        count: Number of samples after which no further batch is read.
        size: Number of indexed samples per batch.
        loader: Loader whose random generators are restored; by default `samples`.
    """
    if is_indexed(samples):
        rows = np.unique(np.linspace(0, max(0, len(samples) - 1), min(count, len(samples))).astype(np.int64))
        yield from samples.take(rows).batches(size, "cpu")
        return
    with _undisturbed(samples if loader is None else loader):
        epoch = getattr(samples, "epoch", None)
        for batch in epoch(0) if callable(epoch) else samples:
            inputs, labels = checked_batch(batch)
            yield inputs, labels
            count -= len(labels)
            if count <= 0:
                return


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    """Return the images and labels of a batch. Raise UsageError if the batch is something else.

    Examples:
        >>> images, labels = checked_batch({"pixel_values": torch.zeros(2, 3, 8, 8), "labels": [0, 1]})
        >>> tuple(images.shape), labels
        ((2, 3, 8, 8), tensor([0, 1]))
    """
    images, labels = _image_and_label(batch, "batch")
    if not isinstance(images, Tensor):
        raise UsageError(
            f"The images of a batch must be a tensor, not a {type(images).__name__}; stack them in the loader's "
            "collate function."
        )
    if labels.ndim == 0:
        raise UsageError(
            "The data yield single samples, not batches; wrap them in torch.utils.data.DataLoader(data, batch_size=64)."
        )
    if labels.is_floating_point() or labels.is_complex():
        raise UsageError(
            f"The labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; pass class indices, a whole "
            "number for each image."
        )
    if images.ndim == 0 or len(images) != len(labels):
        raise UsageError(
            f"A batch has images of shape {tuple(images.shape)} and labels of shape {tuple(labels.shape)}; pass one "
            "label for each image."
        )
    if not len(images):
        raise UsageError("A batch has no images; leave empty batches out.")
    check_values(images)
    return images, labels


def check_values(images: Tensor) -> None:
    """Raise UsageError if the images of a batch have no values, or values that are not finite."""
    if images.is_meta:
        raise UsageError("The images of a batch are on the device meta and have no values; load them on a real device.")
    # A sum is faster than a test of each pixel. It can overflow, so the pixels are tested if the sum is not finite.
    if images.is_floating_point() and not torch.isfinite(images.sum(dtype=torch.float32)):
        broken = (~torch.isfinite(images)).flatten(1).any(dim=1).nonzero().flatten().tolist()
        if broken:
            raise UsageError(
                f"Image {broken[0]} of a batch has NaN or infinite values; leave it out, or correct the transform that "
                "made it."
            )


def _image_and_label(item: Any, what: str) -> tuple[Any, Tensor]:
    """Return the input and the label of a batch or sample. Raise UsageError without them; `what` is its subject."""
    fields = _fields(item)
    if fields is not None:
        image, label = (next((fields[name] for name in names if name in fields), None) for names in (_IMAGES, _LABELS))
        if (image is None or label is None) and len(fields) == 2 and isinstance(item, tuple):
            image, label = item
        if image is None or label is None:
            missing = f"images ({', '.join(_IMAGES)})" if image is None else f"labels ({', '.join(_LABELS)})"
            raise UsageError(
                f"A {what} has the fields {', '.join(map(str, fields)) or 'of no name'}, none of which is known for "
                f"{missing}; rename one, or pass pairs of images and labels."
            )
    elif isinstance(item, list | tuple) and len(item) == 2:
        image, label = item
        fields = _fields(image) or {}
        image = next((fields[name] for name in _IMAGES if name in fields), image)
    else:
        content = f"{len(item)} parts" if isinstance(item, list | tuple) else f"the type {type(item).__name__}"
        raise UsageError(
            f"A {what} has {content}; pass pairs of images and labels, or dictionaries with pixel_values and labels."
        )
    further = [name for name in fields or () if str(name).endswith(_FURTHER_INPUTS)]
    if further:
        raise UsageError(
            f"A {what} has {further[0]}, and the model gets the images alone; leave it out of the data, or wrap the "
            "model in a module that makes it."
        )
    try:
        return image, torch.as_tensor(label)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"The labels of a {what} are no numbers ({type(label).__name__}); pass the index of each class."
        ) from error


def _fields(item: Any) -> dict[Any, Any] | None:
    """Return the named parts of a batch or sample, or None if its parts have no names."""
    if callable(getattr(item, "keys", None)) and hasattr(item, "__getitem__"):
        return {name: item[name] for name in item.keys()}  # noqa: SIM118
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}
    names = getattr(item, "_fields", None) if isinstance(item, tuple) else None
    return None if names is None else dict(zip(names, item, strict=True))


@contextlib.contextmanager
def _undisturbed(loader: object) -> Iterator[None]:
    """Set a separate random state while the block reads a loader.

    Afterwards the global random generators, and those of a DataLoader and its samplers, have their former states.
    """
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(generator, generator.get_state()) for generator in generators if isinstance(generator, torch.Generator)]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(_SEED_OF_FIRST_BATCH)
            random.seed(_SEED_OF_FIRST_BATCH)
            np.random.seed(_SEED_OF_FIRST_BATCH)  # noqa: NPY002
            for generator, _ in states:
                generator.manual_seed(_SEED_OF_FIRST_BATCH)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)
