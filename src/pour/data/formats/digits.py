"""The handwritten digits that ship with scikit-learn: real images, no download, seconds to train on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.info import official

__all__ = ["DIGITS", "read_digits"]

DIGITS = official("digits")


def read_digits() -> ImageDataset:
    """Return the digits as 8 x 8 x 1 images; every fifth image of each class, in order, is for testing.

    The split is a rule and not a draw, so that it is the same under every seed and every version of numpy.

    Example:
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
    """The (n, 8, 8) pixels and (n,) labels, from scikit-learn's file where it lies where it always did.

    To import scikit-learn, with all that it imports, takes a hundred times as long as to read the file.
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
