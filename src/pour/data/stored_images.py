"""Images in files, decoded in threads when they are read."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from pour.data.formats.image_files import read_pixels

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["KEPT_BYTES", "StoredImages", "decoding_threads"]

KEPT_BYTES = 512 * 2**20
"""Largest size of decoded images that training keeps in memory, because it reads them in every epoch."""

# More threads would wait for Python's lock, which a thread holds between two calls of the decoder.
_THREADS = 4
# Number of images per task of a thread: few, so that all threads have work, but several, because a task has a cost.
_IMAGES_PER_TASK = 8


def decoding_threads() -> ThreadPoolExecutor:
    """Return a pool of threads that open and decode files."""
    return ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1))


class StoredImages:
    """Images in files with the interface of a uint8 array (n, height, width, channels). Indexing decodes the rows.

    Args:
        files: Files of the images.
        shape: Height, width and channels of every image.
        size: Height and width to which images are scaled, their centre cut out.
    """

    dtype = np.dtype(np.uint8)
    ndim = 4

    def __init__(
        self, files: Sequence[Path], shape: tuple[int, int, int], *, size: tuple[int, int] | None = None
    ) -> None:
        self.files = list(files)
        self.image_shape = shape
        self.size = size
        self.kept: NDArray[np.uint8] | None = None
        """All images, if they are kept in memory."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Number of images, height, width and channels."""
        return len(self.files), *self.image_shape

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, rows: Any) -> NDArray[np.uint8]:
        """Return the images `rows`. They are decoded unless all images are in memory."""
        with decoding_threads() as pool:
            return self.read(np.arange(len(self))[rows], pool)

    def read(self, rows: NDArray[np.int64], pool: ThreadPoolExecutor) -> NDArray[np.uint8]:
        """Return the images `rows`, decoded by the threads of `pool`."""
        if self.kept is not None:
            selected: NDArray[np.uint8] = self.kept[rows]
            return selected
        images = np.empty((len(rows), *self.image_shape), np.uint8)

        def decode(first: int) -> None:
            for place in range(first, min(first + _IMAGES_PER_TASK, len(rows))):
                images[place] = read_pixels(self.files[rows[place]], grey=self.image_shape[2] == 1, size=self.size)

        for _ in pool.map(decode, range(0, len(rows), _IMAGES_PER_TASK)):
            pass
        return images

    def keep(self) -> bool:
        """Read all images into memory if they take at most `KEPT_BYTES`. Return whether they are in memory."""
        if self.kept is None and int(np.prod(self.shape)) <= KEPT_BYTES:
            self.kept = self[:]
        return self.kept is not None
