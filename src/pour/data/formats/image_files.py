"""Decoding image files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.dataset import ImageArray

__all__ = ["GREY_MODES", "IMAGE_SUFFIXES", "is_image", "open_image", "read_pixels", "to_bytes"]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})

_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
GREY_MODES = frozenset({"1", "L"}) | _SIXTEEN_BITS
"""Pillow's modes of images without colour."""


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
            pixels = np.asarray(to_bytes(image, path, grey=grey), np.uint8)
        except UsageError:
            raise
        except (OSError, ValueError, SyntaxError) as error:
            raise unreadable(path, error) from error
    return pixels[:, :, None] if grey else pixels


def to_bytes(image: Any, path: Path, *, grey: bool) -> Any:
    """Return an open image with 8 bits to a channel; Pillow alone would turn all but the darkest of 16 bits white."""
    # PNG and PGM files of 16 bits are wider integers to some versions of Pillow, with the same values.
    if image.mode in _SIXTEEN_BITS or (image.mode == "I" and image.format in ("PNG", "PPM")):
        from PIL import Image

        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    elif image.mode in ("I", "F"):
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise UsageError(f"{path} holds {kind}, whose range is not known; save it with 8 or 16 bits.")
    return image.convert("L" if grey else "RGB")


def unreadable(path: Path, error: Exception) -> UsageError:
    """Return the error that says that an image file is no image, or only half of one."""
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path} does not exist.")
    return UsageError(f"{path} is not a readable image: it is truncated or damaged ({error}).")
