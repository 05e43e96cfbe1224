"""Models by name: our own, and those of torchvision, timm and transformers."""

from __future__ import annotations

import difflib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour.errors import UsageError
from pour.models import history as cards
from pour.models.foreign import LIBRARIES, build_foreign, installed
from pour.models.head import find_head
from pour.models.resnet import ResNet
from pour.models.state import load_into, read_state_dict
from pour.models.wrapper import NormalizedModel

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["ModelInfo", "build_model", "list_models", "load_plain", "rebuild"]

_RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 64, "blocks": (2, 2, 2, 2)},
    "resnet-digits": {"width": 16, "blocks": (1, 1, 1)},
}
_ALIASES = {"vit_small": "timm:vit_small_patch16_224"}


@dataclass(frozen=True)
class ModelInfo:
    """A line of :func:`list_models`."""

    name: str
    """What to pass as ``arch``; NAME stands for any of the library's own names."""
    summary: str
    extra: str | None = None
    """The extra of pour that it needs, or None."""
    available: bool = True
    """Whether what it needs is installed."""


def list_models() -> list[ModelInfo]:
    """The names that :func:`build_model` knows.

    Example:
        >>> [info.name for info in list_models()][:2]
        ['resnet18', 'resnet-digits']
    """
    vision, hf = installed("timm"), installed("hf")
    return [
        ModelInfo("resnet18", "the paper's ResNet-18 for small images: 3x3 stem, no max-pool, 512 features"),
        ModelInfo("resnet-digits", "a small ResNet for 8x8 grey digits, 64 features"),
        ModelInfo("vit_small", "ViT-S/16 of timm; images are resized to 224 inside", "vision", vision),
        ModelInfo("timm:NAME", "any image classifier of timm", "vision", vision),
        ModelInfo("torchvision:NAME", "any image classifier of torchvision", "vision", installed("torchvision")),
        ModelInfo("hf:NAME", "transformers: a folder, a model of the hub, or a family (vit, resnet, ...)", "hf", hf),
    ]


def build_model(
    arch: str,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    weights: str | os.PathLike[str] | None = None,
) -> nn.Module:
    """Build a classifier that takes images in [0, 1] and normalises them in its first layer.

    Weights are random unless a file is given; nothing is downloaded but a configuration that ``hf:`` names on the hub.
    A network with one fixed input size (a ViT) keeps it, so that published weights fit, and images are resized inside.

    Args:
        arch: A name of :func:`list_models`, such as "resnet18" or "timm:convnext_tiny".
        num_classes: Number of scores.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        mean: Channel means; by default the architecture's own.
        std: Channel deviations; by default the architecture's own.
        weights: A ``.safetensors`` or plain ``.pt``/``.pth`` file. A classifier of another width in it is left out with
            a warning, and the new one starts at random.

    Example:
        >>> model = build_model("resnet-digits", 10, in_channels=1, image_size=8)
        >>> model.head
        Linear(in_features=64, out_features=10, bias=True)
    """
    if num_classes < 2 or in_channels < 1 or image_size < 1:
        raise UsageError(
            "A model needs at least 2 classes, 1 channel and images of 1 pixel, but got "
            f"num_classes={num_classes}, in_channels={in_channels}, image_size={image_size}."
        )
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "image_size": image_size,
        "mean": None if mean is None else [float(value) for value in mean],
        "std": None if std is None else [float(value) for value in std],
    }
    model = rebuild(cards.Architecture(arch, options))
    if weights is not None:
        load_plain(model, read_state_dict(weights), source=str(Path(weights)), new_head=True)
    return model


def rebuild(architecture: cards.Architecture) -> nn.Module:
    """Build the network of a recorded architecture, with random weights."""
    options = dict(architecture.options)
    library, _, name = _ALIASES.get(architecture.name, architecture.name).partition(":")
    try:
        num_classes, in_channels = int(options["num_classes"]), int(options["in_channels"])
        image_size, mean, std = int(options["image_size"]), options.get("mean"), options.get("std")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"The recorded options of {architecture.name!r} are incomplete ({error}); pass the model itself."
        ) from error
    if mean is not None and len(mean) not in (1, in_channels):
        raise UsageError(f"There are {len(mean)} means for {in_channels} channels; give one per channel.")
    model: nn.Module
    if library in LIBRARIES and name:
        foreign = build_foreign(library, name, num_classes, in_channels, options.get("config"))
        options.update(foreign.options)
        resize = foreign.fixed_size if foreign.fixed_size != image_size else None
        model = NormalizedModel(foreign.network, mean or foreign.mean, std or foreign.std, resize=resize)
    elif architecture.name in _RESNETS:
        shape = _RESNETS[architecture.name]
        model = ResNet(num_classes, in_channels=in_channels, mean=mean, std=std, **shape)
    else:
        names = [*_RESNETS, *_ALIASES, *(f"{prefix}:NAME" for prefix in LIBRARIES)]
        close = difflib.get_close_matches(architecture.name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(names)}."
        raise UsageError(f"There is no architecture {architecture.name!r}; {hint}")
    cards.set_architecture(model, architecture.name, options)
    return model


def load_plain(model: nn.Module, state: Mapping[str, Tensor], *, source: str, new_head: bool = False) -> None:
    """Load a state dict that may come from elsewhere and so may lack our normalisation layer.

    Args:
        model: Changed in place.
        state: Names and tensors.
        source: Where they come from, for errors.
        new_head: Let the head keep its own weights, with a warning, where the file has none of its width.
    """
    optional: tuple[str, ...] = ("normalize.mean", "normalize.std")
    if isinstance(model, NormalizedModel) and not any(name.startswith("normalize.") for name in state):
        model = model.model
    if new_head:
        name = find_head(model).name
        own = model.state_dict()
        ours = [key for key in own if key.startswith(f"{name}.")]
        other = [key for key in ours if key not in state or state[key].shape != own[key].shape]
        # Another width of features is another architecture; only another number of classes is a new task.
        if other and all(key not in state or state[key].shape[1:] == own[key].shape[1:] for key in other):
            state = {key: tensor for key, tensor in state.items() if key not in ours}
            optional = (*optional, *ours)
            warnings.warn(
                f"{source} holds no classifier for {find_head(model).num_classes} classes; "
                f"the head {name!r} starts from random weights.",
                stacklevel=3,
            )
    load_into(model, state, source=source, optional=optional)
