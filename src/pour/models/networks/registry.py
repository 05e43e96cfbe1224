"""Models by name: our own, and those of torchvision, timm, transformers and segmentation-models-pytorch."""

from __future__ import annotations

import difflib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from pour.errors import UsageError
from pour.models import card as cards
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.clip.zero_shot import zero_shot_classifier
from pour.models.head import find_head
from pour.models.networks.libraries import LIBRARIES, build_foreign, fit_positions, installed
from pour.models.networks.normalized_model import NormalizedModel
from pour.models.networks.pretrained import read_weights
from pour.models.networks.resnet import ResNet
from pour.models.networks.segmentation import SegmentationModel, load_encoder
from pour.models.state import load_into

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["ModelInfo", "build_model", "list_models", "load_plain", "rebuild"]

_RESNETS: dict[str, dict[str, Any]] = {
    "resnet18": {"width": 64, "blocks": (2, 2, 2, 2)},
    "resnet-small": {"width": 16, "blocks": (1, 1, 1, 1)},
    "resnet-digits": {"width": 16, "blocks": (1, 1, 1)},
}
_CLIP = "clip-"
# Of the sentence encoder all-MiniLM-L6-v2.
_TEXT_WIDTH = 384
_LIBRARIES = ", ".join(LIBRARIES)
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
        ['resnet18', 'resnet-small']
    """
    vision, hf = installed("timm"), installed("hf")
    return [
        ModelInfo("resnet18", "the paper's ResNet-18 for small images: 3x3 stem, no max-pool, 512 features"),
        ModelInfo("resnet-small", "a narrow ResNet-10 for the same images, 128 features: for CPUs"),
        ModelInfo("resnet-digits", "a small ResNet for 8x8 grey digits, 64 features"),
        ModelInfo("clip-resnet18", "the ResNet-18 as an image encoder for text embeddings: a zero-shot classifier"),
        ModelInfo("clip-resnet-small", "the narrow ResNet-10 as such an encoder"),
        ModelInfo("clip-resnet-digits", "the small ResNet as such an encoder"),
        ModelInfo("vit_small", "ViT-S/16 of timm; images are resized to 224 inside", "vision", vision),
        ModelInfo("timm:NAME", "any image classifier of timm", "vision", vision),
        ModelInfo(
            "torchvision:NAME",
            "any image classifier or segmentation net of torchvision",
            "vision",
            installed("torchvision"),
        ),
        ModelInfo("hf:NAME", "transformers: a folder, a model of the hub, or a family (vit, segformer, ...)", "hf", hf),
        ModelInfo(
            "smp:NAME:ENCODER",
            "segmentation-models-pytorch, such as smp:deeplabv3plus:resnet101",
            "segmentation",
            installed("smp"),
        ),
    ]


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

    Weights are random unless a file is given; nothing is downloaded but a configuration that ``hf:`` names on the hub.
    A network with one fixed input size (a ViT) keeps it, so that published weights fit, and images are resized inside.

    Args:
        arch: A name of :func:`list_models`, such as "resnet18" or "timm:convnext_tiny".
        num_classes: Number of scores.
        in_channels: Channels of the images.
        image_size: Height and width of the images.
        mean: Channel means; by default the architecture's own.
        std: Channel deviations; by default the architecture's own.
        resize: The size that images are brought to inside a network of another library; "own" is the size of its
            published weights. By default only a network with one fixed size resizes.
        weights: A ``.safetensors`` or plain ``.pt``/``.pth`` file, or a name of ``pour.models.PRETRAINED``. A head
            of another width in it is left out with a warning, and the new one starts at random; a segmentation network
            also takes those of its encoder alone.
        enlarge: For a segmentation network: enlarge the images by this factor first.

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
    if resize is not None:
        if resize != "own" and resize < 1:
            raise UsageError(f"Images can be resized to 1 pixel or more, but not to {resize}.")
        options["resize"] = resize
    if enlarge != 1:
        options["enlarge"] = enlarge
    model = rebuild(cards.Architecture(arch, options))
    if weights is not None:
        load_plain(model, read_weights(weights), source=str(Path(weights)), new_head=True)
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
    wanted = options.get("resize")
    model: nn.Module
    if library in LIBRARIES and name:
        size = None if wanted in (None, "own") else int(wanted)
        foreign = build_foreign(library, name, num_classes, in_channels, options.get("config"), size=size)
        options.update(foreign.options)
        size = foreign.own_size if wanted == "own" else size
        if wanted is not None:
            options["resize"] = size
        if foreign.fixed_size is not None and size not in (None, foreign.fixed_size):
            raise UsageError(f"{architecture.name} takes images of {foreign.fixed_size} pixels only, not {size}.")
        resize = size or foreign.fixed_size
        resize = None if resize == image_size else resize
        mean, std = mean or foreign.mean, std or foreign.std
        if foreign.multiple is not None:
            enlarge = int(options.get("enlarge", 1))
            model = SegmentationModel(foreign.network, mean, std, multiple=foreign.multiple, enlarge=enlarge)
        else:
            model = NormalizedModel(foreign.network, mean, std, resize=resize)
    elif architecture.name in _RESNETS:
        if options.pop("resize", "own") != "own":
            raise UsageError(f"{architecture.name} takes images as they are; only networks of {_LIBRARIES} resize.")
        shape = _RESNETS[architecture.name]
        model = ResNet(num_classes, in_channels=in_channels, mean=mean, std=std, **shape)
    elif architecture.name.removeprefix(_CLIP) in _RESNETS:
        shape = _RESNETS[architecture.name.removeprefix(_CLIP)]
        options.setdefault("text_width", _TEXT_WIDTH)
        encoder = ImageTextEncoder(options["text_width"], in_channels=in_channels, mean=mean, std=std, **shape)
        # Any texts: the real ones come with a file's weights, or from set_text.
        model = zero_shot_classifier(encoder, torch.randn(num_classes, options["text_width"]))
    else:
        names = [*_RESNETS, *(_CLIP + name for name in _RESNETS), *_ALIASES, *(f"{name}:NAME" for name in LIBRARIES)]
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
        segmentation = isinstance(model, SegmentationModel)
        model = model.model
        if segmentation and new_head and load_encoder(model, state, source=source):
            return
    own = model.state_dict()
    # Whoever stored half precision meant to save space; images come in the network's own.
    state = {
        key: tensor.to(own[key].dtype) if key in own and tensor.is_floating_point() else tensor
        for key, tensor in fit_positions(model, state).items()
    }
    if new_head:
        name = find_head(model).name
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
