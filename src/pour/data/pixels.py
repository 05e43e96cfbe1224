"""Decoding image files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.dataset import ImageArray

__all__ = ["IMAGE_SUFFIXES", "is_image", "open_image", "read_pixels"]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})


def is_image(path: Path) -> bool:
    """Say whether the name is that of an image file; hidden files are not."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def open_image(path: Path) -> Any:
    """Open an image file with Pillow; only its header is read."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(
            f'Reading {path} needs Pillow: pip install "pour-unlearning[report]".',
        ) from error
    try:
        return Image.open(path)
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise unreadable(path, error) from error


def read_pixels(path: Path, *, grey: bool = False) -> ImageArray:
    """Return an image file as uint8, height x width x 3, or x 1 where ``grey``."""
    with open_image(path) as image:
        try:
            pixels = np.asarray(image.convert("L" if grey else "RGB"), np.uint8)
        except (OSError, ValueError, SyntaxError) as error:
            raise unreadable(path, error) from error
    return pixels[:, :, None] if grey else pixels


def unreadable(path: Path, error: Exception) -> UsageError:
    """Return the error that says that an image file is no image, or only half of one."""
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path} does not exist.")
    return UsageError(f"{path} is not a readable image: it is truncated or damaged ({error}).")
