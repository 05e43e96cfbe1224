"""Images in lossless mosaics with 50 images per row: a compact folder for small images.

`train_00.webp`, `train_01.webp`, ... contain the images of the training split in order, row by row.
`train_labels.npy` contains their labels, and an optional `classes.json` the class names. The files of other splits
begin with the name of the split.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from pour._records import read
from pour.data.dataset import ImageArray, ImageSplit
from pour.data.formats.archives import read_array
from pour.data.formats.image_files import GREY_MODES, is_image, open_image, read_pixels
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_mosaic", "read_class_names", "read_mosaic"]

_PER_ROW = 50
_LABELS = "_labels.npy"


def is_mosaic(folder: Path) -> bool:
    """Return whether `folder` contains mosaics."""
    return (folder / f"train{_LABELS}").is_file()


def read_mosaic(folder: Path) -> dict[str, ImageSplit]:
    """Return the splits in `folder` by name.

    Raises:
        UsageError: A page is missing or damaged, or does not have 50 square images per row.
    """
    return {file.name.removesuffix(_LABELS): _read_split(folder, file) for file in sorted(folder.glob(f"*{_LABELS}"))}


def read_class_names(folder: Path) -> tuple[str, ...] | None:
    """Return the names in `classes.json`, or None if there is no such file."""
    file = folder / "classes.json"
    return read(tuple[str, ...], file) if file.is_file() else None


def _read_split(folder: Path, label_file: Path) -> ImageSplit:
    name = label_file.name.removesuffix(_LABELS)
    labels = read_array(label_file)
    pages = sorted(file for file in folder.glob(f"{name}_*") if is_image(file))
    if not pages:
        raise UsageError(f"{folder} has {label_file.name} but no mosaic named {name}_00.webp.")
    with open_image(pages[0]) as first:
        grey = first.mode in GREY_MODES
    # Decoding releases Python's lock, so threads can read several pages at a time.
    with ThreadPoolExecutor() as pool:
        tiles = list(pool.map(lambda page: _tiles(page, grey=grey), pages))
    count = sum(map(len, tiles))
    if not 0 <= count - len(labels) < _PER_ROW:
        raise UsageError(
            f"{folder} has {count} {name} images in {len(pages)} mosaics for {len(labels)} labels; add the missing "
            "mosaic, or the labels of these images."
        )
    return ImageSplit(np.concatenate(tiles)[: len(labels)], labels)


def _tiles(page: Path, *, grey: bool) -> ImageArray:
    pixels = read_pixels(page, grey=grey)
    height, width, channels = pixels.shape
    side = width // _PER_ROW
    if side == 0 or width != side * _PER_ROW or height % side:
        raise UsageError(f"{page} is {width} x {height} pixels, which is not {_PER_ROW} square images per row.")
    rows = pixels.reshape(height // side, side, _PER_ROW, side, channels).transpose(0, 2, 1, 3, 4)
    return rows.reshape(-1, side, side, channels)
