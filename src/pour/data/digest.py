"""Digest of the samples of a split, to compare data without keeping it."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pour.data.samples import IndexedSamples

__all__ = ["split_digest"]

_IMAGES_PER_PART = 4096
# The number divides the images per part. It is small, because all images of a batch are in memory together.
_IMAGES_PER_BATCH = 256


def split_digest(split: IndexedSamples) -> str:
    """Return the SHA-256 digest of the samples and labels of a split.

    Examples:
        >>> from pour.data.dataset import ImageSplit
        >>> split_digest(ImageSplit(np.zeros((1, 8, 8, 1), np.uint8), np.zeros(1, np.int64)))[:8]
        'aa258d9c'
    """
    shape: tuple[int, ...] = ()
    digests = []
    for number, (inputs, _) in enumerate(split.batches(_IMAGES_PER_BATCH, "cpu")):
        images = (inputs.permute(0, 2, 3, 1) if inputs.ndim == 4 else inputs).contiguous().numpy()
        shape = images.shape[1:]
        if number * _IMAGES_PER_BATCH % _IMAGES_PER_PART == 0:
            digests.append(hashlib.sha256())
        digests[-1].update(images.data)
    total = hashlib.sha256(f"{(len(split), *shape)}".encode())
    for part in digests:
        total.update(part.digest())
    total.update(np.ascontiguousarray(split.labels).data)
    return total.hexdigest()
