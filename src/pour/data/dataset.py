"""Images as uint8 arrays or in files, with labels, class names and facts about the dataset."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pour.data.info import OWN_DATA, DatasetInfo
from pour.data.stored_images import StoredImages
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from typing import Self

    import torch

    from pour.data.loader import EpochLoader, Moves

__all__ = ["ImageArray", "ImageDataset", "ImageSamples", "ImageSplit", "LabelArray", "join_splits"]

ImageArray: TypeAlias = NDArray[np.uint8]
LabelArray: TypeAlias = NDArray[np.int64]


class ImageSamples:
    """Images in memory or in files, with one label or one mask each.

    Samples from `take` store row numbers and share the images of their source. Each access to their `images` copies or
    decodes them.
    """

    __slots__ = ("index", "labels", "source")

    void: ClassVar[int | None] = None
    """Label of void pixels."""
    source: ImageArray | StoredImages
    """Images; the samples are the rows `index`."""
    labels: NDArray[Any]
    """Labels or masks of the samples."""
    index: LabelArray | None
    """Rows of `source`; None for all of them in their order."""

    @property
    def images(self) -> ImageArray:
        """Images of the samples. A selection is copied, and images in files are decoded at each access."""
        if self.index is None and not isinstance(self.source, StoredImages):
            return self.source
        return self.source[slice(None) if self.index is None else self.index]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.source.shape[1:]
        return height, width, channels

    def take(self, rows: LabelArray) -> Self:
        """Return the samples `rows` in this order. No image is copied.

        Args:
            rows: Indices, or a boolean for each image.

        Examples:
            >>> split = ImageSplit(np.zeros((3, 8, 8, 1), np.uint8), np.array([0, 1, 0]))
            >>> split.take(split.labels == 0)
            ImageSplit(2 images of 8 x 8 x 1)
        """
        rows = np.asarray(rows)
        if rows.dtype == bool and rows.shape == (len(self),):
            rows = np.flatnonzero(rows)
        if rows.dtype.kind not in "iu":
            raise UsageError(
                f"Rows are indices, or a boolean for each of the {len(self)} images, not {_describe(rows)}."
            )
        samples = copy.copy(self)
        samples.labels = self.labels[rows]
        samples.index = np.asarray(rows, np.int64) if self.index is None else self.index[rows]
        return samples

    def batches(
        self,
        batch_size: int,
        device: torch.device | str,
        *,
        augment: bool = False,
        mirrors: bool = True,
        **options: Any,
    ) -> EpochLoader:
        """Return a loader of (images, labels), see `IndexedSamples`.

        If images in files are shuffled, as in training, they are first read into memory, unless they take more than
        `KEPT_BYTES`.
        """
        from pour.data.loader import DeviceLoader, FileLoader

        moves = self._moves(mirrors) if augment else None
        options |= {"batch_size": batch_size, "device": device, "augment": moves}
        source = self.source
        if isinstance(source, StoredImages) and not (
            source.keep() if options.get("shuffle") else source.kept is not None
        ):
            return FileLoader(
                source, np.arange(len(source)) if self.index is None else self.index, self.labels, **options
            )
        return DeviceLoader(self.images, self.labels, void=self.void, **options)

    def _moves(self, mirrors: bool) -> Moves:
        """Return the usual augmentation."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images of {' x '.join(map(str, self.image_shape))})"


class ImageSplit(ImageSamples):
    """Images (n x height x width x channels, uint8, in memory or in files) with one label each (n, int64).

    Examples:
        >>> split = ImageSplit(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 0, 1]))
        >>> odd = split.take(np.array([1, 3]))
        >>> odd
        ImageSplit(2 images of 8 x 8 x 1)
        >>> odd.labels, odd.source is split.source
        (array([1, 1]), True)
    """

    __slots__ = ()

    def __init__(self, images: ImageArray | StoredImages, labels: NDArray[np.integer]) -> None:
        if not isinstance(images, np.ndarray | StoredImages) or images.dtype != np.uint8 or images.ndim != 4:
            raise UsageError(
                f"Images must be a uint8 array of shape (n, height, width, channels), not {_describe(images)}."
            )
        if images.shape[3] not in (1, 3) or 0 in images.shape[1:]:
            hint = "; transpose them with images.transpose(0, 2, 3, 1)" if images.shape[1] in (1, 3) else ""
            raise UsageError(
                f"Images must have 1 or 3 channels in the last dimension, but their shape is {images.shape}{hint}."
            )
        if not isinstance(labels, np.ndarray) or labels.ndim != 1 or labels.dtype.kind not in "iu":
            raise UsageError(f"Labels must be a one-dimensional array of integers, not {_describe(labels)}.")
        if len(images) != len(labels):
            raise UsageError(f"There are {len(images)} images but {len(labels)} labels; each image needs one.")
        self.source = images
        self.labels = labels.astype(np.int64, copy=False)
        self.index = None

    def without(self, classes: Collection[int]) -> Self:
        """Return the images of all classes except `classes`. No image is copied.

        Examples:
            >>> ImageSplit(np.zeros((3, 8, 8, 1), np.uint8), np.array([0, 1, 0])).without([0])
            ImageSplit(1 images of 8 x 8 x 1)
        """
        return self.take(np.flatnonzero(~np.isin(self.labels, list(classes))))

    def _moves(self, mirrors: bool) -> Moves:
        """Return the usual augmentation."""
        from pour.data.augment import Augment

        return Augment.for_images(self.image_shape[0], flip=mirrors)


def join_splits(splits: Sequence[ImageSplit]) -> ImageSplit:
    """Return one split with the images of several splits in order. Files are not read, and shared images not copied.

    Examples:
        >>> split = ImageSplit(np.zeros((3, 8, 8, 1), np.uint8), np.array([0, 1, 0]))
        >>> join_splits([split.take(np.array([2])), split]).labels
        array([0, 0, 1, 0])
    """
    labels = np.concatenate([split.labels for split in splits])
    rows = [np.arange(len(split.source)) if split.index is None else split.index for split in splits]
    first = splits[0].source
    if all(split.source is first for split in splits):
        joined = ImageSplit(first, np.zeros(len(first), np.int64)).take(np.concatenate(rows))
        joined.labels = labels
        return joined
    stored = [split.source for split in splits if isinstance(split.source, StoredImages)]
    if len(stored) == len(splits) and len({(source.image_shape, source.size) for source in stored}) == 1:
        files = [source.files[row] for source, indices in zip(stored, rows, strict=True) for row in indices]
        return ImageSplit(StoredImages(files, stored[0].image_shape, size=stored[0].size), labels)
    return ImageSplit(np.concatenate([split.images for split in splits]), labels)


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """A classification dataset: named splits of images that share their classes and their shape.

    Examples:
        >>> grey = ImageSplit(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 0, 1]))
        >>> data = ImageDataset(name="tiny", classes=("cat", "dog"), splits={"train": grey, "test": grey})
        >>> data.num_classes, data.image_shape
        (2, (8, 8, 1))
    """

    name: str
    classes: tuple[str, ...]
    """Class names in the order of the labels."""
    splits: Mapping[str, ImageSplit]
    """Splits by name: `"train"`, `"test"`, and further test sets under other names, such as `"external"`."""
    info: DatasetInfo = field(default=OWN_DATA, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "classes", tuple(self.classes))
        order = sorted(self.splits, key=lambda name: (name != "train", name != "test"))
        object.__setattr__(self, "splits", {name: self.splits[name] for name in order})
        self._check_classes()
        for needed in ("train", "test"):
            if needed not in self.splits:
                raise UsageError(f"{self.name} has no {needed} split, only {', '.join(self.splits) or 'none'}.")
        for name, split in self.splits.items():
            self._check_split(name, split)
        present = np.bincount(self.splits["train"].labels, minlength=self.num_classes)
        empty = [self.classes[c] for c in np.flatnonzero(present == 0)]
        if empty:
            raise UsageError(
                f"{self.name} has no training images of {_some(empty)}; add some or drop the class from its list."
            )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width and channels of every image."""
        return self.splits["train"].image_shape

    def _check_classes(self) -> None:
        if len(self.classes) < 2:
            raise UsageError(
                f"{self.name} has {len(self.classes)} class, but classification needs at least two; add one."
            )
        if not all(isinstance(name, str) and name for name in self.classes):
            raise UsageError(f"The class names of {self.name} must be non-empty strings, not {self.classes}.")
        twice = [name for name, count in Counter(self.classes).items() if count > 1]
        if twice:
            raise UsageError(f"{self.name} has two classes named {twice[0]!r}; class names must be different.")

    def _check_split(self, name: str, split: ImageSplit) -> None:
        if split.image_shape != self.image_shape:
            raise UsageError(
                f"The {name} images of {self.name} have shape {split.image_shape} but the training images have "
                f"{self.image_shape}; all splits need the same."
            )
        wrong = np.flatnonzero((split.labels < 0) | (split.labels >= self.num_classes))
        if len(wrong):
            raise UsageError(
                f"Image {wrong[0]} of the {name} split of {self.name} has label {split.labels[wrong[0]]}, but "
                f"labels must be 0 to {self.num_classes - 1} for {self.num_classes} classes "
                f"({len(wrong)} of {len(split)} labels are out of range)."
            )


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"a {value.dtype} array of shape {value.shape}"
    return f"a {type(value).__name__}"


def _some(names: list[str], most: int = 5) -> str:
    listed = ", ".join(repr(name) for name in names[:most])
    return listed if len(names) <= most else f"{listed} and {len(names) - most} more classes"
