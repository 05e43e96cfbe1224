"""Building networks of torchvision, timm and transformers."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pour._torchvision import torchvision_works
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

__all__ = ["LIBRARIES", "Foreign", "build_foreign", "installed"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LIBRARIES = {"timm": "vision", "torchvision": "vision", "hf": "hf"}
"""The libraries by the prefix of their models' names, and the extra that installs each."""
_PACKAGES = {"hf": "transformers"}


@dataclass(frozen=True)
class Foreign:
    """A network of another library with what it expects of its input."""

    network: nn.Module
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fixed_size: int | None
    """The only image size it takes, or None."""
    options: Mapping[str, Any]
    """What else is needed to build it again without a network connection."""


def installed(library: str) -> bool:
    """Whether the package behind a prefix is there."""
    return importlib.util.find_spec(_PACKAGES.get(library, library)) is not None


def build_foreign(
    library: str, name: str, num_classes: int, in_channels: int, config: Mapping[str, Any] | None = None
) -> Foreign:
    """Build ``name`` of ``library`` with random weights and ``num_classes`` scores."""
    package = _PACKAGES.get(library, library)
    if not installed(library) or (not torchvision_works() and library != "hf"):
        raise UsageError(
            f'{library}:{name} needs {package}; install it with pip install "pour-unlearning[{LIBRARIES[library]}]".'
        )
    if library == "timm":
        return _timm(name, num_classes, in_channels)
    if in_channels not in (1, 3):
        raise UsageError(f"{library}:{name} takes images of 3 channels (grey ones are repeated), not {in_channels}.")
    return _torchvision(name, num_classes) if library == "torchvision" else _hf(name, num_classes, config)


def _unknown(library: str, name: str, names: Sequence[str]) -> UsageError:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"see the list of {library}'s models."
    return UsageError(f"{library} has no image classifier called {name!r}; {hint}")


def _timm(name: str, num_classes: int, in_channels: int) -> Foreign:
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels)
    config = network.pretrained_cfg
    mean = tuple(config.get("mean", IMAGENET_MEAN))
    std = tuple(config.get("std", IMAGENET_STD))
    if in_channels != len(mean):
        mean, std = (sum(mean) / len(mean),) * in_channels, (sum(std) / len(std),) * in_channels
    fixed = config["input_size"][-1] if config.get("fixed_input_size") else None
    return Foreign(network, mean, std, fixed, {})


def _torchvision(name: str, num_classes: int) -> Foreign:
    models = importlib.import_module("torchvision.models")
    names = models.list_models(module=models)
    if name not in names:
        raise _unknown("torchvision", name, names)
    network = models.get_model(name, weights=None, num_classes=num_classes)
    size = getattr(network, "image_size", None)
    return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, size if isinstance(size, int) else None, {})


def _hf(name: str, num_classes: int, config: Mapping[str, Any] | None) -> Foreign:
    transformers = importlib.import_module("transformers")
    try:
        if config is not None:
            settings = transformers.AutoConfig.for_model(**config)
        elif name in transformers.CONFIG_MAPPING:
            settings = transformers.AutoConfig.for_model(name)
        else:
            settings = transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"transformers finds no configuration {name!r}; give a folder with a config.json, a model of the hub "
            "(with a network connection), or a family such as vit, resnet or convnext."
        ) from error
    if settings.num_labels != num_classes:
        settings.num_labels = num_classes
    try:
        network = transformers.AutoModelForImageClassification.from_config(settings)
    except ValueError as error:
        raise UsageError(f"transformers has no image classifier for {name!r}; give another family.") from error
    size = getattr(settings, "image_size", None)
    # Transformers with position embeddings insist on their size; convolutional networks only mention it.
    fixed = size if isinstance(size, int) and hasattr(settings, "num_attention_heads") else None
    return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, fixed, {"config": settings.to_dict()})
