"""What commands print, and how they open models."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.console import Console

import pour
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from torch import nn

    from pour.data.dataset import ImageDataset

__all__ = ["open_model", "show"]

PIPE_WIDTH = 160


def open_model(path: Path, arch: str | None, dataset: ImageDataset | None, num_classes: int | None = None) -> nn.Module:
    """A model from a file of pour, or from plain weights and an architecture."""
    if arch is None:
        return pour.load(path)
    if dataset is not None:
        height, _, channels = dataset.image_shape
        skeleton = pour.build_model(arch, dataset.num_classes, in_channels=channels, image_size=height)
        loaded = pour.load(path, skeleton)
        from pour.models import set_class_names

        set_class_names(loaded, dataset.classes)
        return loaded
    if num_classes is None:
        raise UsageError("Plain weights need the number of classes; pass --data or --num-classes.")
    return pour.load(path, pour.build_model(arch, num_classes))


def show(content: RenderableType, *, quiet: bool = False) -> None:
    """Print a table or text to standard output, unless quiet."""
    if not quiet:
        # A pipe has no width of its own; tables need more than the 80 columns that it would be given.
        Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(content)
