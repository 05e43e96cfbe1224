"""Many small pictures in one: a sheet of thumbnails as a PNG."""

from __future__ import annotations

import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pour.data.dataset import ImageArray

__all__ = ["encode_png", "sheet_of", "thumbnails"]

# Beyond this the eye sees no more on a card, and the page grows.
_LONGEST_SIDE = 48


def thumbnails(images: ImageArray) -> ImageArray:
    """Reduce (n, height, width, channels) images by a whole factor until they are small; small ones stay as they are.

    Example:
        >>> thumbnails(np.zeros((2, 224, 224, 3), np.uint8)).shape
        (2, 44, 44, 3)
    """
    factor = math.ceil(max(images.shape[1:3]) / _LONGEST_SIDE)
    if factor == 1:
        return images
    n, height, width, channels = images.shape
    rows, columns = max(1, height // factor), max(1, width // factor)
    by_row, by_column = min(factor, height), min(factor, width)
    cut = images[:, : rows * by_row, : columns * by_column]
    blocks = cut.reshape(n, rows, by_row, columns, by_column, channels)
    small: ImageArray = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    return small


def sheet_of(images: ImageArray) -> tuple[ImageArray, int]:
    """Lay images out from left to right and top to bottom; returns the sheet and its number of columns.

    Example:
        >>> sheet, columns = sheet_of(np.ones((5, 2, 3, 1), np.uint8))
        >>> sheet.shape, columns
        ((4, 9, 1), 3)
    """
    n, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    filled = np.zeros((rows * columns, height, width, channels), np.uint8)
    filled[:n] = images
    grid = filled.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels), columns


def encode_png(image: ImageArray) -> bytes:
    r"""A (height, width, 1 or 3) picture as the bytes of a PNG file, the same for the same picture.

    Example:
        >>> encode_png(np.zeros((2, 2, 1), np.uint8))[:4]
        b'\x89PNG'
    """
    height, width, channels = image.shape
    # Each row says first how it was filtered: 2 is the difference to the row above, which suits small pictures.
    above = np.vstack([np.zeros_like(image[:1]), image[:-1]])
    rows = np.full((height, 1 + width * channels), 2, np.uint8)
    rows[:, 1:] = (image - above).reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
