"""Handwritten digits of scikit-learn: real images without a download, for networks that train in seconds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.info import official

__all__ = ["DIGITS", "read_digits"]

DIGITS = official("digits")


def read_digits() -> ImageDataset:
    """Return the digits as 8 x 8 x 1 images. Every fifth image of each class is a test image.

    No seed and no version of numpy changes this split.

    Examples:
        >>> data = read_digits()
        >>> data.image_shape, len(data.splits["train"]), len(data.splits["test"])
        ((8, 8, 1), 1442, 355)
    """
    counts, labels = _stored()
    # Pixels are counts from 0 to 16.
    images = np.rint(counts * (255 / 16)).astype(np.uint8)[..., None]
    test = np.zeros(len(labels), bool)
    for label in range(10):
        test[np.flatnonzero(labels == label)[4::5]] = True
    return ImageDataset(
        name="digits",
        classes=DIGITS.classes,
        splits={
            "train": ImageSplit(images[~test], labels[~test]),
            "test": ImageSplit(images[test], labels[test]),
        },
        info=DIGITS,
    )


def _stored() -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (n, 8, 8) and the labels (n,) from scikit-learn's file, or from scikit-learn without the file.

    Importing scikit-learn takes a hundred times as long as reading the file.
    """
    package = importlib.util.find_spec("sklearn")
    for folder in (package.submodule_search_locations if package is not None else None) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    stored = load_digits()
    return stored.images, stored.target.astype(np.int64)
