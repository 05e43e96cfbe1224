"""Scenes in memory: images with a class for every pixel."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pour.data.augment import IGNORED, SceneAugment
from pour.data.dataset import ImageSamples
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Self

    from pour.data.dataset import ImageArray, LabelArray
    from pour.data.formats.scenes import SegmentationSplit
    from pour.data.loader import Moves

__all__ = ["IGNORED", "MaskArray", "Scenes"]

MaskArray: TypeAlias = NDArray[np.uint8]


class Scenes(ImageSamples):
    """Images of one size (n x height x width x 3, uint8) with masks (n x height x width, uint8).

    A mask contains classes, and `IGNORED` for void pixels.

    Examples:
        >>> masks = np.array([[[0, 1]], [[0, 0]]], np.uint8)
        >>> scenes = Scenes(np.zeros((2, 1, 2, 3), np.uint8), masks, num_classes=2)
        >>> len(scenes.containing([1])), scenes.only([1]).masks.tolist()
        (1, [[[255, 1]], [[255, 255]]])
    """

    __slots__ = ("num_classes",)

    void: ClassVar[int | None] = IGNORED

    def __init__(self, images: ImageArray, masks: MaskArray, num_classes: int) -> None:
        if images.dtype != np.uint8 or images.ndim != 4 or masks.dtype != np.uint8:
            raise UsageError(
                f"Scenes are uint8 images (n, height, width, channels) with uint8 masks, not {images.dtype} "
                f"{images.shape} with {masks.dtype}."
            )
        if images.shape[:3] != masks.shape or not len(images):
            raise UsageError(
                f"Images of shape {images.shape[:3]} do not fit masks of shape {masks.shape}; "
                "pass one mask of the same size to each image, at least one."
            )
        wrong = masks[(masks >= num_classes) & (masks != IGNORED)]
        if wrong.size:
            raise UsageError(f"A mask contains label {wrong[0]}, but labels are 0 to {num_classes - 1} or {IGNORED}.")
        self.source = images
        self.labels = masks
        self.index = None
        self.num_classes = num_classes

    @classmethod
    def of(cls, split: SegmentationSplit, *, limit: int | None = None) -> Scenes:
        """Read a split. Smaller images get a void margin at the right and below.

        Args:
            split: Pairs of files.
            limit: Largest number of images, which are spread evenly over the split.
        """
        if not len(split):
            raise UsageError("The split has no images.")
        rows: Sequence[int] = range(len(split))
        if limit is not None and limit < len(split):
            if limit < 1:
                raise UsageError(f"limit is {limit}; set it to 1 or more.")
            rows = [place * len(split) // limit for place in range(limit)]
        # Decoding releases Python's lock, so threads can read several files at a time.
        with ThreadPoolExecutor() as pool:
            pairs = list(pool.map(split.read, rows))
        height, width = (max(image.shape[side] for image, _ in pairs) for side in (0, 1))
        images = np.zeros((len(pairs), height, width, 3), np.uint8)
        masks = np.full((len(pairs), height, width), IGNORED, np.uint8)
        for i, (image, mask) in enumerate(pairs):
            place = np.s_[i, : mask.shape[0], : mask.shape[1]]
            images[place] = image
            masks[place] = np.where(mask == split.void, IGNORED, mask)
        return cls(images, masks, split.num_classes)

    @property
    def masks(self) -> MaskArray:
        """Masks of the scenes."""
        return self.labels

    def containing(self, classes: Collection[int]) -> Self:
        """Return the scenes with at least one pixel of `classes`."""
        rows = np.flatnonzero(np.isin(self.masks, list(classes)).any(axis=(1, 2)))
        if not len(rows):
            raise UsageError(f"No image shows class {', '.join(map(str, classes))}.")
        return self.take(rows)

    def only(self, classes: Collection[int]) -> Self:
        """Return the same scenes with all pixels of other classes void."""
        return self._with_void(~np.isin(self.masks, list(classes)))

    def without(self, classes: Collection[int]) -> Self:
        """Return the same scenes with all pixels of `classes` void."""
        return self._with_void(np.isin(self.masks, list(classes)))

    def counts(self) -> LabelArray:
        """Return the number of pixels of each class."""
        return np.bincount(self.masks.ravel(), minlength=IGNORED + 1)[: self.num_classes]

    def _with_void(self, places: NDArray[np.bool_]) -> Self:
        changed = copy.copy(self)
        changed.labels = np.where(places, np.uint8(IGNORED), self.masks)
        return changed

    def _moves(self, mirrors: bool) -> Moves:
        return SceneAugment(flip=mirrors)
