"""Datasets in one `.npz` file: `train_x, train_y, test_x, test_y`, or MedMNIST's `train_images, train_labels`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.archives import read_npz
from pour.data.splits import numbered_names
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["read_npz_dataset", "read_npz_splits"]

_SUFFIXES = (("_x", "_y"), ("_images", "_labels"))


def read_npz_splits(path: Path) -> tuple[dict[str, ImageSplit], tuple[str, ...] | None]:
    """Return the splits in a `.npz` file by name, and its class names if it has an array `classes`.

    Images are n x h x w x c or, if grey, n x h x w. Labels are n or n x 1. Pairs under further names, such as
    `external_x, external_y`, become extra splits.
    """
    arrays = read_npz(path)
    splits: dict[str, ImageSplit] = {}
    for images_end, labels_end in _SUFFIXES:
        for key in arrays:
            name = key.removesuffix(images_end)
            if name == key or not name:
                continue
            if name + labels_end not in arrays:
                raise UsageError(f"{path} has {key} but not {name}{labels_end}; each split needs images and labels.")
            splits[name] = _split(path, name, arrays[key], arrays[name + labels_end])
    if "train" not in splits:
        raise UsageError(
            f"{path} must contain train_x, train_y, test_x and test_y (or train_images, train_labels, ...); "
            f"it contains {', '.join(arrays) or 'nothing'}."
        )
    return splits, _class_names(path, arrays.get("classes"))


def read_npz_dataset(path: Path) -> ImageDataset:
    """Return the dataset in a `.npz` file. If the file has no class names, the labels are the names."""
    splits, stored = read_npz_splits(path)
    return ImageDataset(name=path.stem, classes=stored or numbered_names(splits), splits=splits)


def _split(path: Path, name: str, images: NDArray[Any], labels: NDArray[Any]) -> ImageSplit:
    if labels.ndim == 2 and labels.shape[1] > 1:
        raise UsageError(
            f"The {name} labels in {path} have shape {labels.shape}: several per image, where one is needed."
        )
    try:
        return ImageSplit(images[..., None] if images.ndim == 3 else images, labels.reshape(len(labels), -1)[:, 0])
    except UsageError as error:
        raise UsageError(f"The {name} split in {path} cannot be used: {error}") from None
    except (IndexError, TypeError) as error:
        raise UsageError(f"The {name} labels in {path} have shape {labels.shape}, where (n,) is expected.") from error


def _class_names(path: Path, stored: NDArray[Any] | None) -> tuple[str, ...] | None:
    if stored is None:
        return None
    if stored.ndim != 1 or stored.dtype.kind not in "US":
        raise UsageError(f"The array classes in {path} must be a list of strings, one per class.")
    return tuple(np.char.decode(stored, "utf-8").tolist() if stored.dtype.kind == "S" else stored.tolist())
