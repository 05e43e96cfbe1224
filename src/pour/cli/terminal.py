"""Open models for commands, and print their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pour
from pour._terminal import open_console
from pour.cli.flags import refuse_unread
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from torch import nn

    from pour.training.tasks.task import Dataset

__all__ = ["PlainWeights", "open_model", "open_own", "show"]


@dataclass(frozen=True)
class PlainWeights:
    """Facts that a file of plain weights does not contain: the flags --arch, --mean and --std."""

    arch: str
    mean: str | None = None
    std: str | None = None

    @classmethod
    def of(cls, arch: str | None, mean: str | None, std: str | None, *files: Path) -> PlainWeights | None:
        """Return the flags of a command that opens ``files``, or None if it names no architecture.

        The files can be files of pour and plain weights. Raise UsageError for a normalisation that no file needs.
        """
        normalisation = {"--mean": mean, "--std": std}
        if arch is None:
            refuse_unread(normalisation, "without --arch", "name the network of the plain weights, or leave it out")
            return None
        if (mean, std) != (None, None) and all(map(_carries_normalisation, files)):
            refuse_unread(normalisation, f"with {files[0]}", "it contains a normalisation, so leave it out")
        return cls(arch, mean, std)

    def build(self, num_classes: int, *, in_channels: int = 3, image_size: int = 32) -> nn.Module:
        """Return the network of the weights."""
        return pour.build_model(
            self.arch,
            num_classes,
            in_channels=in_channels,
            image_size=image_size,
            mean=_per_channel("--mean", self.mean, in_channels),
            std=_per_channel("--std", self.std, in_channels),
        )


def _carries_normalisation(file: Path) -> bool:
    from pour.models.state import read_state_dict

    return any(name.endswith("normalize.mean") for name in read_state_dict(file))


def _per_channel(flag: str, text: str | None, channels: int) -> list[float] | None:
    """Return the numbers of a flag, one per channel."""
    if text is None:
        return None
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(
            f"{flag} must be one number or one per channel, such as 0.5,0.5,0.5, but is {text!r}."
        ) from error
    if len(numbers) not in (1, channels):
        raise UsageError(
            f"{flag} has {len(numbers)} numbers for {channels} channels; give one number or one per channel."
        )
    return numbers * (channels // len(numbers))


def open_own(path: Path, advice: str) -> nn.Module:
    """Return the model of a file of pour. Raise UsageError with ``advice`` for a file without an architecture."""
    from pour.models import read_header
    from pour.models.state import is_torch_file

    if path.is_file():
        header = None if is_torch_file(path) else read_header(path)
        if header is None or header.architecture is None:
            raise UsageError(f"{path} does not name its architecture; {advice}.")
    return pour.load(path)


def open_model(
    path: Path, plain: PlainWeights | None, dataset: Dataset | None, num_classes: int | None = None
) -> nn.Module:
    """Return the model of a file of pour, or of plain weights and an architecture."""
    if plain is None:
        classes = "" if dataset is not None else ", and its classes with --data or --num-classes"
        return open_own(path, f"name it with --arch{classes}")
    if dataset is not None:
        height, _, channels = getattr(dataset, "image_shape", (32, 32, 3))
        loaded = pour.load(path, plain.build(len(dataset.classes), in_channels=channels, image_size=height))
        from pour.models import set_class_names

        set_class_names(loaded, dataset.classes)
        return loaded
    if num_classes is None:
        raise UsageError("Plain weights need the number of classes; pass --data or --num-classes.")
    return pour.load(path, plain.build(num_classes))


def show(content: RenderableType, *, quiet: bool = False) -> None:
    """Print a table or text to standard output, unless quiet."""
    if not quiet:
        open_console().print(content)
