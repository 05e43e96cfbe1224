"""A sheet of thumbnails: many small pictures in one PNG."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pour.data.dataset import ImageArray

__all__ = ["encode_png", "sheet_of", "thumbnails"]

# A larger picture shows no more on a card and makes the page larger.
_CARD_SIDE = 48


def thumbnails(images: ImageArray, longest: int = _CARD_SIDE) -> ImageArray:
    """Reduce (n, height, width, channels) images by a whole factor to at most `longest` pixels per side.

    Examples:
        >>> thumbnails(np.zeros((2, 224, 224, 3), np.uint8)).shape
        (2, 44, 44, 3)
    """
    n, height, width, channels = images.shape
    factor = math.ceil(max(height, width) / longest)
    by_row, by_column = min(factor, height), min(factor, width)
    rows, columns = height // by_row, width // by_column
    blocks = images[:, : rows * by_row, : columns * by_column].reshape(n, rows, by_row, columns, by_column, channels)
    small: ImageArray = blocks.mean(axis=(2, 4)).round().astype(np.uint8)
    return small


def sheet_of(images: ImageArray) -> tuple[ImageArray, int]:
    """Return one picture with the images from left to right and top to bottom, and its number of columns.

    Examples:
        >>> sheet, columns = sheet_of(np.ones((5, 2, 3, 1), np.uint8))
        >>> sheet.shape, columns
        ((4, 9, 1), 3)
    """
    n, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(n))
    rows = math.ceil(n / columns)
    tiles = np.zeros((rows * columns, height, width, channels), np.uint8)
    tiles[:n] = images
    grid = tiles.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels), columns


def encode_png(image: ImageArray) -> bytes:
    r"""Return a picture (height, width, 1 or 3) as the bytes of a PNG file, the same bytes for the same picture.

    Examples:
        >>> encode_png(np.zeros((2, 2, 1), np.uint8))[:4]
        b'\x89PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(2) if image.shape[2] == 1 else image).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()
