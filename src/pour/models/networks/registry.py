"""Build models by name: networks of pour, torchvision, timm, transformers and segmentation-models-pytorch."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from pour.errors import UsageError, nearest_name, warn
from pour.models import card as cards
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.clip.zero_shot import zero_shot_classifier
from pour.models.head import Head, find_head
from pour.models.networks.libraries import (
    LIBRARIES,
    POSITIONS,
    USER_NETWORKS,
    build_from_library,
    fit_positions,
    installed,
    library_call,
)
from pour.models.networks.normalize import NormalizedModel
from pour.models.networks.pretrained import read_weights
from pour.models.networks.resnet import ResNet
from pour.models.networks.segmentation import SegmentationModel, load_encoder
from pour.models.networks.user_network import build_user_network, is_user_network
from pour.models.prefixes import without_prefix
from pour.models.state import load_into

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["ModelInfo", "build_model", "calling", "list_models", "load_plain", "rebuild"]

_NETWORKS: dict[str, dict[str, Any]] = tomllib.loads(
    (files("pour.models.networks") / "networks.toml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class ModelInfo:
    """Description of a network in `list_models`."""

    name: str
    """Name for the argument `arch`. Replace NAME by a name of the library."""
    summary: str
    extra: str | None = None
    """Extra of pour that installs the library, or None."""
    available: bool = True
    """Whether the library is installed."""


def list_models() -> list[ModelInfo]:
    """Return the names that `build_model` accepts.

    Examples:
        >>> [info.name for info in list_models()][:2]
        ['resnet18', 'resnet-small']
    """
    infos = []
    for name, entry in _NETWORKS.items():
        library = entry.get("library")
        extra = None if library is None else LIBRARIES[library]
        infos.append(ModelInfo(name, entry["summary"], extra, library is None or installed(library)))
    return infos


def build_model(
    arch: str,
    num_classes: int,
    *,
    in_channels: int = 3,
    image_size: int = 32,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    resize: int | Literal["own"] | None = None,
    weights: str | os.PathLike[str] | None = None,
    enlarge: int = 1,
) -> nn.Module:
    """Build a classifier that takes images in [0, 1] and normalises them in its first layer.

    Weights are random unless a file is given. Nothing is downloaded except a configuration of `hf:` from the hub.
    A network with one fixed input size (a ViT) keeps this size, so that published weights fit, and resizes images.
    A network of your own code is imported. It gets images in [0, 1] unchanged, unless mean or deviation are set.

    Args:
        arch: A name of `list_models`, such as "resnet18" or "timm:convnext_tiny"; or a class or function of your
            own code, as "package.module:NAME" or "path/to/file.py:NAME".
        num_classes: Number of scores.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        mean: Channel means; by default the architecture's own.
        std: Channel deviations; by default the architecture's own.
        resize: Size to which a network of another library resizes images; "own" is the size of its published weights.
            By default only a network with one fixed size resizes.
        weights: A `.safetensors` or plain `.pt`/`.pth` file, or a name of `pour.models.PRETRAINED`. A head
            of another width in it is ignored with a warning, and the new head starts at random. A segmentation network
            also takes the weights of its encoder alone.
        enlarge: For a segmentation network: factor by which images are enlarged first.

    Examples:
        >>> model = build_model("resnet-digits", 10, in_channels=1, image_size=8)
        >>> model.head
        Linear(in_features=64, out_features=10, bias=True)
    """
    if num_classes < 2 or in_channels < 1 or image_size < 1:
        raise UsageError(
            "A model needs at least 2 classes, 1 channel and images of 1 pixel, but got "
            f"{num_classes} classes, {in_channels} channels and images of {image_size} pixels."
        )
    options: dict[str, Any] = {
        "num_classes": num_classes,
        "in_channels": in_channels,
        "image_size": image_size,
        "mean": None if mean is None else [float(value) for value in mean],
        "std": None if std is None else [float(value) for value in std],
    }
    if resize is not None and resize != "own" and resize < 1:
        raise UsageError(f"Images can be resized to 1 pixel or more, but not to {resize}.")
    if is_user_network(arch):
        if enlarge != 1:
            raise UsageError(f"{arch} takes images as they are; enlarge is for segmentation networks of libraries.")
        # The published size of a user's network is unknown.
        size = None if resize == "own" else resize
        model = build_user_network(arch, num_classes, in_channels=in_channels, mean=mean, std=std, resize=size)
    else:
        options |= {"resize": resize} if resize is not None else {}
        options |= {"enlarge": enlarge} if enlarge != 1 else {}
        model = rebuild(cards.Architecture(arch, options))
    if weights is not None:
        load_plain(model, read_weights(weights), source=str(Path(weights)), new_head=True)
    return model


def rebuild(architecture: cards.Architecture) -> nn.Module:
    """Build the network of a recorded architecture, with random weights. A recorded name never causes an import."""
    name, options = architecture.name, dict(architecture.options)
    if architecture.from_user or is_user_network(name):
        raise UsageError(
            f"The network {name!r} is defined in the user's own code, which no model file may import; pass the network "
            "itself."
        )
    try:
        num_classes, in_channels = int(options["num_classes"]), int(options["in_channels"])
        image_size, mean = int(options["image_size"]), options.get("mean")
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"The recorded options of {name!r} are incomplete ({error}); pass the model itself."
        ) from error
    if mean is not None and len(mean) not in (1, in_channels):
        raise UsageError(f"There are {len(mean)} means for {in_channels} channels; pass one per channel.")
    network = _NETWORKS.get(name, {})
    library, _, library_name = network.get("alias", name).partition(":")
    if library in LIBRARIES and library_name:
        model = _of_library(library, library_name, options, image_size)
    elif network:
        if options.pop("resize", "own") != "own":
            raise UsageError(f"{name} takes images as they are; only networks of {', '.join(LIBRARIES)} resize.")
        shape: dict[str, Any] = {key: network[key] for key in ("width", "blocks")}
        shape |= {"in_channels": in_channels, "mean": mean, "std": options.get("std")}
        if "text_width" in network:
            width = options.setdefault("text_width", network["text_width"])
            # The texts are arbitrary here. A file of weights or set_text replaces them.
            model = zero_shot_classifier(ImageTextEncoder(width, **shape), torch.randn(num_classes, width))
        else:
            model = ResNet(num_classes, **shape)
    else:
        hint = nearest_name(name, _NETWORKS, f"known are {', '.join(_NETWORKS)}.")
        # Only the names of files and modules contain a point, so such a name is no misspelt architecture.
        raise UsageError(f"There is no architecture {name!r}{'.' if '.' in name else f'; {hint}'} {USER_NETWORKS}")
    cards.set_architecture(model, name, options)
    return model


def calling(architecture: cards.Architecture) -> str | None:
    """Return the Python expression that builds a network of a library without pour, or None for other networks."""
    network = _NETWORKS.get(architecture.name, {})
    library, _, name = network.get("alias", architecture.name).partition(":")
    return library_call(library, name, architecture.options) if library in LIBRARIES and name else None


def _of_library(library: str, name: str, options: dict[str, Any], image_size: int) -> nn.Module:
    """Build a network of another library for images in [0, 1]. Add the options of the network to `options`."""
    resize = options.get("resize")
    size = None if resize in (None, "own") else int(resize)
    built = build_from_library(
        library, name, options["num_classes"], options["in_channels"], config=options.get("config"), size=size
    )
    options.update(built.options)
    if resize == "own":
        size = built.trained_size
    if resize is not None:
        options["resize"] = size
    if built.fixed_size is not None and size not in (None, built.fixed_size):
        raise UsageError(f"{library}:{name} takes images of {built.fixed_size} pixels only, not {size}.")
    mean, std = options.get("mean") or built.mean, options.get("std") or built.std
    if built.multiple is not None:
        enlarge = int(options.get("enlarge", 1))
        return SegmentationModel(built.network, mean, std, multiple=built.multiple, enlarge=enlarge)
    size = size or built.fixed_size
    return NormalizedModel(built.network, mean, std, resize=None if size == image_size else size)


def load_plain(model: nn.Module, state: Mapping[str, Tensor], *, source: str, new_head: bool = False) -> None:
    """Load a state dict of any origin, which may lack the normalisation layer of pour or have a prefix.

    Args:
        model: Network, changed in place.
        state: Tensors by name.
        source: File of the tensors, for errors.
        new_head: Whether the head keeps its weights, with a warning, if the head in `state` has another width.
    """
    optional: tuple[str, ...] = ("normalize.mean", "normalize.std")
    if isinstance(model, NormalizedModel) and not any(name.endswith("normalize.mean") for name in state):
        if new_head and isinstance(model, SegmentationModel) and load_encoder(model.model, state, source=source):
            return
        model = model.model
    expected = model.state_dict()
    head = _clear_head(model) if new_head else None
    names = () if head is None else tuple(name for name in expected if name.startswith(f"{head.name}."))
    state = without_prefix(state, expected, source=source, optional=(*optional, POSITIONS, *names))
    # Files may store half precision to save space, but the network needs the precision of its images.
    state = {
        name: tensor.to(expected[name].dtype) if name in expected and tensor.is_floating_point() else tensor
        for name, tensor in fit_positions(model, state).items()
    }
    if head is not None:
        misfits = [name for name in names if name not in state or state[name].shape != expected[name].shape]
        # Another width of features is another architecture. Only another number of classes is a new task.
        if misfits and all(name not in state or state[name].shape[1:] == expected[name].shape[1:] for name in misfits):
            state = {name: tensor for name, tensor in state.items() if name not in names}
            optional = (*optional, *names)
            warn(
                f"{source} contains no classifier for {head.num_classes} classes; the head {head.name!r} starts from "
                "random weights."
            )
    load_into(model, state, source=source, optional=optional)


def _clear_head(model: nn.Module) -> Head | None:
    """Return the head, or None if only images show which layer it is."""
    try:
        return find_head(model)
    except UsageError:
        return None
