"""Digest of the images and labels of a split, to compare data without keeping it."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pour.data.samples import IndexedSamples

__all__ = ["split_digest"]

_IMAGES_PER_PART = 4096


def split_digest(split: IndexedSamples) -> str:
    """Return the SHA-256 digest of the images and labels of a split; threads hash parts of the images.

    Example:
        >>> from pour.data.dataset import ImageSplit
        >>> split_digest(ImageSplit(np.zeros((1, 8, 8, 1), np.uint8), np.zeros(1, np.int64)))[:8]
        'aa258d9c'
    """
    images, labels = np.ascontiguousarray(split.images), np.ascontiguousarray(split.labels)
    parts = [images[start : start + _IMAGES_PER_PART].data for start in range(0, len(images), _IMAGES_PER_PART)]
    total = hashlib.sha256(f"{images.shape}".encode())
    with ThreadPoolExecutor() as pool:
        for part in pool.map(hashlib.sha256, parts):
            total.update(part.digest())
    total.update(labels.data)
    return total.hexdigest()
