"""Images with a class for every pixel, in memory: what segmentation trains on, forgets and is audited on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import torch

    from pour.data.dataset import ImageArray, LabelArray
    from pour.data.formats.scenes import SegmentationSplit
    from pour.data.scene_loader import SceneLoader

__all__ = ["IGNORED", "MaskArray", "Scenes"]

MaskArray: TypeAlias = NDArray[np.uint8]
IGNORED = 255
"""Label of pixels that count for nothing."""


@dataclass(frozen=True, eq=False)
class Scenes:
    """Images of one size and their masks.

    Example:
        >>> masks = np.array([[[0, 1]], [[0, 0]]], np.uint8)
        >>> scenes = Scenes(np.zeros((2, 1, 2, 3), np.uint8), masks, num_classes=2)
        >>> len(scenes.containing([1])), scenes.only([1]).masks.tolist()
        (1, [[[255, 1]], [[255, 255]]])
    """

    images: ImageArray
    """(n, H, W, 3) uint8."""
    masks: MaskArray
    """(n, H, W) uint8: classes, and :data:`IGNORED`."""
    num_classes: int

    def __post_init__(self) -> None:
        if self.images.dtype != np.uint8 or self.images.ndim != 4 or self.masks.dtype != np.uint8:
            raise UsageError(
                f"Scenes are uint8 images (n, height, width, channels) with uint8 masks, not {self.images.dtype} "
                f"{self.images.shape} with {self.masks.dtype}."
            )
        if self.images.shape[:3] != self.masks.shape or not len(self.images):
            raise UsageError(
                f"Images of shape {self.images.shape[:3]} do not fit masks of shape {self.masks.shape}; "
                "give one mask of the same size to each image, at least one."
            )
        wrong = self.masks[(self.masks >= self.num_classes) & (self.masks != IGNORED)]
        if wrong.size:
            raise UsageError(f"A mask holds label {wrong[0]}, but labels are 0 to {self.num_classes - 1} or {IGNORED}.")

    @classmethod
    def of(cls, split: SegmentationSplit, *, limit: int | None = None) -> Scenes:
        """Read a split; images of different sizes are set into the largest, the margin counting for nothing.

        Args:
            split: its pairs of files.
            limit: take only so many, evenly over the split.
        """
        if not len(split):
            raise UsageError("The split has no images.")
        rows: Sequence[int] = range(len(split))
        if limit is not None and limit < len(split):
            if limit < 1:
                raise UsageError(f"limit is {limit}; take at least 1 image.")
            rows = [place * len(split) // limit for place in range(limit)]
        # Decoding leaves Python's lock, so threads are enough.
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
    def labels(self) -> MaskArray:
        """The masks."""
        return self.masks

    def __len__(self) -> int:
        return len(self.images)

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
    ) -> SceneLoader:
        """Return a loader of (images, masks), see :class:`~pour.data.samples.IndexedSamples`."""
        from pour.data.scene_loader import SceneAugment, SceneLoader

        return SceneLoader(
            self,
            batch_size=batch_size,
            device=device,
            seed=seed,
            shuffle=shuffle,
            augment=SceneAugment(flip=mirrors) if augment else None,
            drop_last=drop_last,
        )

    def take(self, rows: LabelArray) -> Scenes:
        """Only these images, in this order."""
        return replace(self, images=self.images[rows], masks=self.masks[rows])

    def containing(self, classes: Collection[int]) -> Scenes:
        """The images with at least one pixel of ``classes``."""
        found = np.flatnonzero(np.isin(self.masks, list(classes)).any(axis=(1, 2)))
        if not len(found):
            raise UsageError(f"No image shows class {', '.join(map(str, classes))}.")
        return self.take(found)

    def only(self, classes: Collection[int]) -> Scenes:
        """The same images, with every other label hidden: what may be known to who may see the forget set alone."""
        return replace(self, masks=np.where(np.isin(self.masks, list(classes)), self.masks, np.uint8(IGNORED)))

    def without(self, classes: Collection[int]) -> Scenes:
        """The same images, with the pixels of ``classes`` counting for nothing."""
        return replace(self, masks=np.where(np.isin(self.masks, list(classes)), np.uint8(IGNORED), self.masks))

    def counts(self) -> LabelArray:
        """Pixels of each class."""
        return np.bincount(self.masks.ravel(), minlength=IGNORED + 1)[: self.num_classes]
