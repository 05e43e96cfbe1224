"""A user's own images: one folder per class."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.image_files import GREY_MODES, images_in, open_image, read_pixels
from pour.data.info import DatasetInfo
from pour.errors import UsageError

__all__ = ["read_folder"]

_TEST_SHARE = 5


def read_folder(path: Path, *, size: int | None = None) -> ImageDataset:
    """Return the images under ``path`` as a dataset.

    Either ``path/train/CLASS/image`` and ``path/test/CLASS/image`` (or ``val``, where there is no ``test``), where
    further folders beside the two are extra test sets, or ``path/CLASS/image``, of which a fifth of each class is set
    apart for testing. Which fifth depends on the file names alone, so that it stays the same when images are added
    elsewhere.

    Args:
        path: The folder.
        size: Scale the shorter side to this many pixels and cut out the centre square; without it all images must
            have the same size.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; give a folder with one folder of images per class.")
    if size is not None and size < 1:
        raise UsageError(f"The image size must be at least 1 pixel, not {size}.")
    # A class may be called "train"; then it holds images and no folders, or has no "test" beside it.
    if (path / "train").is_dir() and (_test_folder(path).is_dir() or _subfolders(path / "train")):
        classes, files = _given_splits(path)
    else:
        classes, files = _own_splits(path)
    listed = [file for split in files.values() for file, _ in split]
    grey, shape = _common_shape(listed, size)
    splits = {}
    with ThreadPoolExecutor() as pool:
        for name, entries in files.items():
            images = np.empty((len(entries), *shape, 1 if grey else 3), np.uint8)
            read = pool.map(lambda entry: read_pixels(entry[0], grey=grey, size=size), entries)
            for row, pixels in enumerate(read):
                images[row] = pixels
            splits[name] = ImageSplit(images, np.array([label for _, label in entries], np.int64))
    info = DatasetInfo(name=f"folder:{path}", title=path.name, needs="Pillow, and the folder itself")
    # File systems allow names that no text can hold.
    names = tuple(os.fsencode(name).decode("utf-8", "replace") for name in classes)
    return ImageDataset(name=path.name, classes=names, splits=splits, info=info)


_Files = dict[str, list[tuple[Path, int]]]


def _given_splits(path: Path) -> tuple[list[str], _Files]:
    classes = _subfolders(path / "train")
    test = _test_folder(path)
    if not test.is_dir():
        raise UsageError(
            f"{path} has a folder train but no folder test; add it, or put the class folders directly here."
        )
    extra = {name: path / name for name in _subfolders(path) if name not in ("train", test.name)}
    files: _Files = {}
    for split, folder in {"train": path / "train", "test": test, **extra}.items():
        unknown = set(_subfolders(folder)) - set(classes)
        if unknown:
            raise UsageError(f"{folder} has a class {min(unknown)!r} that {path / 'train'} does not have.")
        files[split] = [(file, classes.index(name)) for name in classes for file in images_in(folder / name)]
    _refuse_empty(path / "train", classes, files["train"])
    if not files["test"]:
        raise UsageError(f"{test} has no images in its class folders.")
    return classes, files


def _test_folder(path: Path) -> Path:
    """Return the folder of test images; ImageNet and similar sets have labels only for ``val``."""
    return path / "test" if (path / "test").is_dir() or not (path / "val").is_dir() else path / "val"


def _own_splits(path: Path) -> tuple[list[str], _Files]:
    classes = _subfolders(path)
    files: _Files = {"train": [], "test": []}
    for label, name in enumerate(classes):
        shuffled = sorted(images_in(path / name), key=lambda file: hashlib.sha256(os.fsencode(file.name)).digest())
        count = len(shuffled) // _TEST_SHARE
        files["test"] += [(file, label) for file in sorted(shuffled[:count])]
        files["train"] += [(file, label) for file in sorted(shuffled[count:])]
    _refuse_empty(path, classes, files["train"])
    if not files["test"]:
        raise UsageError(
            f"{path} has fewer than {_TEST_SHARE} images in every class, too few to set some apart for testing."
        )
    return classes, files


def _refuse_empty(path: Path, classes: list[str], files: list[tuple[Path, int]]) -> None:
    if not classes:
        raise UsageError(f"{path} has no folders; put the images of each class into a folder named after the class.")
    filled = {label for _, label in files}
    for label, name in enumerate(classes):
        if label not in filled:
            raise UsageError(f"{path / name} has no images; add some or remove the folder.")


def _subfolders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _common_shape(files: list[Path], size: int | None) -> tuple[bool, tuple[int, int]]:
    grey, first = True, None
    for file in files:
        with open_image(file) as image:
            grey = grey and image.mode in GREY_MODES
            shape = (image.height, image.width)
        if first is None:
            first = file, shape
        elif size is None and shape != first[1]:
            raise UsageError(
                f"{first[0]} is {first[1][1]} x {first[1][0]} pixels but {file} is {shape[1]} x {shape[0]}; all images "
                "need one size: name the dataset folder:PATH@SIZE to scale them."
            )
    if first is None:
        raise UsageError("There are no images to read.")
    return grey, first[1] if size is None else (size, size)
