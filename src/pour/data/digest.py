"""Digest of the samples of a split, to compare data without keeping it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pour.data.samples import IndexedSamples

__all__ = ["split_digest"]

_IMAGES_PER_PART = 4096


def split_digest(split: IndexedSamples) -> str:
    """Return the SHA-256 digest of the samples and labels of a split.

    Example:
        >>> from pour.data.dataset import ImageSplit
        >>> split_digest(ImageSplit(np.zeros((1, 8, 8, 1), np.uint8), np.zeros(1, np.int64)))[:8]
        'aa258d9c'
    """
    shape: tuple[int, ...] = ()
    digests = []
    for inputs, _ in split.batches(_IMAGES_PER_PART, "cpu"):
        images = (inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs).contiguous().numpy()
        shape = images.shape[1:]
        digests.append(hashlib.sha256(images.data).digest())
    total = hashlib.sha256(f"{(len(split), *shape)}".encode())
    for part in digests:
        total.update(part)
    total.update(np.ascontiguousarray(split.labels).data)
    return total.hexdigest()
