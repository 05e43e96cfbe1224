"""A user's own images: one folder per class."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.draws import set_apart
from pour.data.formats.image_files import GREY_MODES, check_image, images_in, open_image
from pour.data.info import DatasetInfo
from pour.data.stored_images import StoredImages, decoding_threads
from pour.errors import UsageError

__all__ = ["read_folder"]

# Number of files that one error names.
_NAMED = 10
_HEADERS_PER_TASK = 64
# Names of folders that are splits and no classes, in small letters.
_SPLITS = frozenset({"train", "training", "test", "testing", "val", "valid", "validation"})


def read_folder(path: Path, *, size: tuple[int, int] | None = None) -> ImageDataset:
    """Return the images under `path` as a dataset. Images are decoded when they are read.

    The folder has one of two structures:

    - `path/train/CLASS/image` and `path/test/CLASS/image`. If there is no `test`, `val` is used. Further folders next
      to the two are extra test sets.
    - `path/CLASS/image`. A fifth of each class is the test split. It depends on the file names alone, so it does not
      change if images are added to other classes.

    The folder of a class may contain subfolders. Their images belong to the class.

    Args:
        path: Folder.
        size: Height and width of the images. Images are scaled, and their centre is cut out. Without it all images must
            have the same size.

    Raises:
        UsageError: The folder has another structure, or some files are no images. The message names these files.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; pass a folder with one folder of images per class.")
    if size is not None and min(size) < 1:
        raise UsageError(f"The image size must be at least 1 pixel, not {min(size)}.")
    # A class may be called "train". Its folder then contains images and no folders, or there is no folder "test".
    if (path / "train").is_dir() and (_test_folder(path).is_dir() or _subfolders(path / "train")):
        classes, files = _given_splits(path)
    else:
        classes, files = _own_splits(path)
    shape = _common_shape(path, [file for split in files.values() for file, _ in split], size)
    splits = {
        name: ImageSplit(
            StoredImages([file for file, _ in entries], shape, size=size),
            np.array([label for _, label in entries], np.int64),
        )
        for name, entries in files.items()
    }
    info = DatasetInfo(name=f"folder:{path}", title=path.name, needs="Pillow, and the folder itself")
    # File systems allow names that are no valid text.
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
            raise UsageError(
                f"{folder} has a class {min(unknown)!r} that {path / 'train'} does not have; add it there or remove it."
            )
        files[split] = [(file, classes.index(name)) for name in classes for file in _images_under(folder / name)]
    _refuse_empty(path / "train", classes, files["train"])
    if not files["test"]:
        raise UsageError(f"{test} has no images in its class folders; add some.")
    return classes, files


def _test_folder(path: Path) -> Path:
    """Return the folder of test images; ImageNet and similar sets have labels only for `val`."""
    return path / "test" if (path / "test").is_dir() or not (path / "val").is_dir() else path / "val"


def _own_splits(path: Path) -> tuple[list[str], _Files]:
    classes = _subfolders(path)
    _refuse_splits(path, classes)
    every = [(file, label) for label, name in enumerate(classes) for file in _images_under(path / name)]
    names = [os.fsencode(file.relative_to(path / classes[label])) for file, label in every]
    sides = set_apart(np.array([label for _, label in every]), names)
    files: _Files = {split: [every[row] for row in rows] for split, rows in zip(("train", "test"), sides, strict=True)}
    _refuse_empty(path, classes, files["train"])
    if not files["test"]:
        raise UsageError(f"{path} has fewer than 5 images in every class, too few for a test split; add some.")
    return classes, files


def _refuse_empty(path: Path, classes: list[str], files: list[tuple[Path, int]]) -> None:
    if not classes:
        raise UsageError(f"{path} has no folders; put the images of each class into a folder named after the class.")
    filled = {label for _, label in files}
    for label, name in enumerate(classes):
        if label not in filled:
            raise UsageError(f"{path / name} has no images; add some or remove the folder.")


def _refuse_splits(path: Path, classes: list[str]) -> None:
    """Refuse folders of splits with other names than pour's, because they would be read as classes."""
    for name in classes:
        if name.lower() in _SPLITS and _subfolders(path / name) and not images_in(path / name):
            raise UsageError(
                f"{path / name} has folders and no images, so it seems to be a split and no class; call the folders of "
                "the splits train and test."
            )


def _images_under(folder: Path) -> list[Path]:
    """Return the images of a class, also those in folders of its folder, in the order of their paths."""
    if not folder.is_dir():
        return []
    inner = [file for name in _subfolders(folder) for file in _images_under(folder / name)]
    return sorted([*images_in(folder), *inner])


def _subfolders(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _common_shape(path: Path, files: list[Path], size: tuple[int, int] | None) -> tuple[int, int, int]:
    """Return height, width and channels of all images, from their headers. Raise UsageError for unreadable files."""
    parts = [files[first : first + _HEADERS_PER_TASK] for first in range(0, len(files), _HEADERS_PER_TASK)]
    with decoding_threads() as pool:
        headers = {file: header for part in pool.map(_headers, parts) for file, header in part}
    bad = [str(header) for _, header in sorted(headers.items()) if isinstance(header, UsageError)]
    good = {file: header for file, header in headers.items() if not isinstance(header, UsageError)}
    if len(bad) == 1:
        raise UsageError(bad[0])
    if bad:
        ending = f"\n  and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
        raise UsageError(
            f"{len(bad):,} of {len(files):,} images in {path} cannot be read; repair or remove them:"
            + "".join(f"\n  {message}" for message in bad[:_NAMED])
            + ending
        )
    channels = 1 if all(is_grey for is_grey, _ in good.values()) else 3
    if size is not None:
        return *size, channels
    by_shape: dict[tuple[int, int], list[Path]] = {}
    for file, (_, shape) in good.items():
        by_shape.setdefault(shape, []).append(file)
    (shape, first), *others = by_shape.items()
    if others:
        other, different = others[0]
        count = len(good) - len(first)
        raise UsageError(
            f"{first[0]} is {shape[1]} x {shape[0]} pixels but {different[0]} is {other[1]} x {other[0]} ({count:,} of "
            f"{len(good):,} images have another size than the first); all images need one size: name the dataset "
            "PATH@SIZE or PATH@HEIGHTxWIDTH to scale them."
        )
    return *shape, channels


def _headers(files: list[Path]) -> list[tuple[Path, tuple[bool, tuple[int, int]] | UsageError]]:
    return [(file, _header(file)) for file in files]


def _header(file: Path) -> tuple[bool, tuple[int, int]] | UsageError:
    """Return whether an image is grey, and its height and width; or the error if it cannot be read."""
    try:
        with open_image(file) as image:
            check_image(image, file)
            return image.mode in GREY_MODES, (image.height, image.width)
    except UsageError as error:
        return error
