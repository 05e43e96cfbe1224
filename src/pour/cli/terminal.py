"""Open models for commands, and print their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pour
from pour._io import existing_file
from pour._terminal import open_console
from pour.cli.flags import refuse_unread
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import RenderableType
    from torch import nn

    from pour.models.header import Header
    from pour.training.tasks.task import Dataset

__all__ = ["PlainWeights", "open_model", "open_own", "read_pour_header", "require_clear_head", "show"]


@dataclass(frozen=True)
class PlainWeights:
    """Facts that a file of plain weights does not contain: the flags --arch, --mean and --std."""

    arch: str
    mean: str | None = None
    std: str | None = None

    @classmethod
    def of(cls, arch: str | None, mean: str | None, std: str | None, *files: Path) -> PlainWeights | None:
        """Return the flags of a command that opens `files`, or None if it names no architecture.

        The files can be files of pour and plain weights. Raise UsageError for a normalisation that no file needs.
        """
        normalisation = {"--mean": mean, "--std": std}
        if arch is None:
            refuse_unread(normalisation, "without --arch", "name the network of the plain weights, or leave it out")
            return None
        if (mean, std) != (None, None) and all(map(_carries_normalisation, files)):
            refuse_unread(normalisation, f"with {files[0]}", "it contains a normalisation, so leave it out")
        return cls(arch, mean, std)

    def build(self, file: Path, dataset: Dataset | None, num_classes: int | None = None) -> nn.Module:
        """Return the network of the weights in `file` with random weights, for the classes of `dataset`."""
        from pour.models.networks.normalize import is_wrapped
        from pour.models.networks.user_network import build_user_network, is_user_network
        from pour.models.state import read_state_dict

        height, _, channels = getattr(dataset, "image_shape", (32, 32, 3))
        num_classes = num_classes if dataset is None else len(dataset.classes)
        is_of_user = is_user_network(self.arch)
        if is_of_user and dataset is None:
            channels = max((flag or "").count(",") + 1 for flag in (self.mean, self.std))
        mean, std = (_per_channel(f"--{name}", getattr(self, name), channels) for name in ("mean", "std"))
        if not is_of_user:
            if num_classes is None:
                raise UsageError("Plain weights need the number of classes; pass --data or --num-classes.")
            return pour.build_model(self.arch, num_classes, in_channels=channels, image_size=height, mean=mean, std=std)
        recorded, state = _recorded_options(file), read_state_dict(file)
        if recorded or is_wrapped(state):
            # The file decides. Its constants replace these ones when it is read.
            mean = std = [1.0] * state["normalize.mean"].numel() if is_wrapped(state) else None
        number = recorded.get("num_classes")
        if isinstance(number, int) and any(number in tensor.shape for tensor in state.values()):
            num_classes = number
        return build_user_network(
            self.arch,
            num_classes,
            in_channels=None if dataset is None else channels,
            mean=mean,
            std=std,
            resize=recorded.get("resize") if mean else None,
        )


def _recorded_options(file: Path) -> Mapping[str, Any]:
    """Return the options of a network of the user's own code that a file of pour contains; otherwise nothing."""
    header = read_pour_header(file)
    architecture = None if header is None else header.architecture
    return architecture.options if architecture is not None and architecture.from_user else {}


def _carries_normalisation(file: Path) -> bool:
    """Return whether the file contains a normalisation, or a network of pour that takes images as they are."""
    from pour.models.state import read_state_dict

    return bool(_recorded_options(file)) or any(name.endswith("normalize.mean") for name in read_state_dict(file))


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


def read_pour_header(path: Path) -> Header | None:
    """Return the header of a file of pour, or None for plain weights."""
    from pour.models import read_header
    from pour.models.state import is_torch_file

    return None if is_torch_file(existing_file(path)) else read_header(path)


def open_own(path: Path, advice: str) -> nn.Module:
    """Return the model of a file of pour. Raise UsageError with `advice` for a file without an architecture."""
    from pour.models.networks.libraries import USER_NETWORKS_PAGE
    from pour.models.networks.user_network import is_user_network

    header = read_pour_header(path)
    if header is None or header.architecture is None:
        raise UsageError(f"{path} does not name its architecture; {advice}.")
    architecture = header.architecture
    if architecture.from_user or is_user_network(architecture.name):
        raise UsageError(
            f"{path} contains a network of your own code ({architecture.name!r} when it was saved), and no model file "
            f"may import code; name the class or function with --arch FILE.py:NAME ({USER_NETWORKS_PAGE})."
        )
    return pour.load(path)


def open_model(
    path: Path, plain: PlainWeights | None, dataset: Dataset | None, num_classes: int | None = None
) -> nn.Module:
    """Return the model of a file of pour, or of plain weights and an architecture."""
    from pour.models import class_names, set_class_names
    from pour.models.networks.libraries import USER_NETWORKS_PAGE

    if plain is None:
        network = f"a name from pour models, or FILE.py:NAME for a network of your own, see {USER_NETWORKS_PAGE}"
        classes = "" if dataset is not None else ", and its classes with --data or --num-classes"
        return open_own(path, f"name it with --arch ({network}){classes}")
    loaded = pour.load(path, plain.build(path, dataset, num_classes))
    if dataset is not None and class_names(loaded) is None:
        set_class_names(loaded, dataset.classes)
    return loaded


def require_clear_head(model: nn.Module, file: Path) -> None:
    """Raise UsageError with the remedies of the command line if the head is not found without images."""
    try:
        pour.models.find_head(model)
    except UsageError as error:
        problem = str(error).rpartition("; ")[0] or str(error).rstrip(".")
        raise UsageError(
            f"{problem}; pass --data, on whose images the head is found, or list the layers with pour inspect {file}."
        ) from error


def show(content: RenderableType, *, quiet: bool = False) -> None:
    """Print a table or text to standard output, unless quiet."""
    if not quiet:
        open_console().print(content)
