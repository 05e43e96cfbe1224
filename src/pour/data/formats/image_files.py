"""Decode image files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pour.data.dataset import ImageArray

__all__ = [
    "GREY_MODES",
    "IMAGE_SUFFIXES",
    "check_image",
    "images_in",
    "is_image",
    "open_image",
    "read_pixels",
    "to_bytes",
]

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"})

_SIXTEEN_BITS = frozenset({"I;16", "I;16B", "I;16L", "I;16N"})
GREY_MODES = frozenset({"1", "L"}) | _SIXTEEN_BITS
"""Pillow's modes of images without colour."""
_ENDS = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
"""Last bytes of a complete file, by Pillow's name of the format."""


def is_image(path: Path) -> bool:
    """Return whether a file has the ending of an image file. Hidden files are no images."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def images_in(folder: Path) -> list[Path]:
    """Return the image files of a folder in the order of their names. The list is empty if there is no such folder."""
    return sorted(file for file in folder.iterdir() if is_image(file)) if folder.is_dir() else []


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Any]:
    """Open an image file with Pillow. Errors of Pillow in the block become UsageError.

    Only the header is read at first.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError(f'Reading {path} needs Pillow: pip install "pour-unlearning[report]".') from error
    try:
        with Image.open(path) as image:
            yield image
    except (UsageError, FileNotFoundError) as error:
        raise error if isinstance(error, UsageError) else UsageError(f"{path} does not exist.") from error
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UsageError(f"{path} is not a readable image: it is truncated or damaged ({error}).") from error


def check_image(image: Any, path: Path) -> None:
    """Raise an error if an open image has pixels of unknown range, or if its file was cut off.

    Only the end of the file is read. If the file does not end with the last bytes of its format, it is decoded, because
    some programs append bytes.
    """
    _check_range(image, path)
    end = _ENDS.get(image.format)
    if end is not None:
        place = image.fp.tell()
        image.fp.seek(0, 2)
        image.fp.seek(max(0, image.fp.tell() - len(end)))
        is_complete = image.fp.read() == end
        image.fp.seek(place)
        if not is_complete:
            image.load()


def read_pixels(path: Path, *, grey: bool = False, size: tuple[int, int] | None = None) -> ImageArray:
    """Return an image file as uint8, (height, width, 3), or (height, width, 1) if `grey`.

    Args:
        path: File of the image.
        grey: Return one channel.
        size: Height and width to which the image is scaled, its centre cut out.
    """
    with open_image(path) as image:
        from PIL import Image, ImageOps

        picture = to_bytes(image, path, grey=grey)
        if size is not None:
            picture = ImageOps.fit(picture, size[::-1], method=Image.Resampling.BICUBIC)
        pixels = np.asarray(picture, np.uint8)
    return pixels[:, :, None] if grey else pixels


def to_bytes(image: Any, path: Path, *, grey: bool) -> Any:
    """Return an open image with 8 bits per channel. Pillow itself converts most values of 16-bit images to white."""
    _check_range(image, path)
    if image.mode in _SIXTEEN_BITS or image.mode == "I":
        from PIL import Image

        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    return image.convert("L" if grey else "RGB")


def _check_range(image: Any, path: Path) -> None:
    # Some versions of Pillow open PNG and PGM files of 16 bits as 32-bit integers, with the same values.
    if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
        kind = "32-bit integers" if image.mode == "I" else "floats"
        raise UsageError(f"{path} contains {kind}, whose range is not known; save it with 8 or 16 bits.")
