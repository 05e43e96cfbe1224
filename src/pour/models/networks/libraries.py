"""Building networks of torchvision, timm, transformers and segmentation-models-pytorch."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pour._torchvision import torchvision_works
from pour.errors import UsageError
from pour.models.projecting.projected_head import is_head_layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = ["LIBRARIES", "Foreign", "build_foreign", "fit_positions", "installed"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LIBRARIES = {"timm": "vision", "torchvision": "vision", "hf": "hf", "smp": "segmentation"}
"""The libraries by the prefix of their models' names, and the extra that installs each."""
_PACKAGES = {"hf": "transformers", "smp": "segmentation_models_pytorch"}
_TORCHVISION_SIZE = 224
# Transformers knows this family as a classifier too, but its name and its use are the other.
_SEGMENTATION_FAMILIES = frozenset({"segformer"})
_DENSE = "ForSemanticSegmentation"


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
    multiple: int | None = None
    """For a network that scores every pixel: the sides of its images must be multiples of this. None for the others."""
    own_size: int | None = None
    """The image size that its published weights were trained at, or None where nobody says."""


def installed(library: str) -> bool:
    """Whether the package behind a prefix is there."""
    return importlib.util.find_spec(_PACKAGES.get(library, library)) is not None


def build_foreign(
    library: str,
    name: str,
    num_classes: int,
    in_channels: int,
    config: Mapping[str, Any] | None = None,
    *,
    size: int | None = None,
) -> Foreign:
    """Build ``name`` of ``library`` with random weights and ``num_classes`` scores.

    A network of timm with one fixed image size is built for ``size`` where that is given.
    """
    package = _PACKAGES.get(library, library)
    if not installed(library) or (not torchvision_works() and library != "hf"):
        raise UsageError(
            f'{library}:{name} needs {package}; install it with pip install "pour-unlearning[{LIBRARIES[library]}]".'
        )
    if library == "timm":
        return _timm(name, num_classes, in_channels, size)
    if library == "smp":
        return _smp(name, num_classes, in_channels)
    if in_channels not in (1, 3):
        raise UsageError(f"{library}:{name} takes images of 3 channels (grey ones are repeated), not {in_channels}.")
    return _torchvision(name, num_classes) if library == "torchvision" else _hf(name, num_classes, config)


def _unknown(library: str, name: str, names: Sequence[str]) -> UsageError:
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"see the list of {library}'s models."
    return UsageError(f"{library} has no image classifier called {name!r}; {hint}")


def fit_positions(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``state`` with its position embeddings resampled to those of a timm network that was built for another size."""
    name = "pos_embed"
    own = dict(network.named_parameters()).get(name)
    found = state.get(name)
    grid = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    if own is None or found is None or grid is None or own.shape == found.shape or own.ndim != found.ndim:
        return dict(state)
    layers = importlib.import_module("timm.layers")
    prefix = own.shape[1] - grid[0] * grid[1]
    return {**state, name: layers.resample_abs_pos_embed(found, new_size=list(grid), num_prefix_tokens=prefix)}


def _timm(name: str, num_classes: int, in_channels: int, size: int | None) -> Foreign:
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    known = timm.get_pretrained_cfg(name)
    sized = {"img_size": size} if size is not None and known is not None and known.fixed_input_size else {}
    network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels, **sized)
    config = network.pretrained_cfg
    mean = tuple(config.get("mean", IMAGENET_MEAN))
    std = tuple(config.get("std", IMAGENET_STD))
    if in_channels != len(mean):
        mean, std = (sum(mean) / len(mean),) * in_channels, (sum(std) / len(std),) * in_channels
    own = config["input_size"][-1] if "input_size" in config else None
    fixed = (size or own) if config.get("fixed_input_size") else None
    return Foreign(network, mean, std, fixed, {}, own_size=own)


def _torchvision(name: str, num_classes: int) -> Foreign:
    models = importlib.import_module("torchvision.models")
    dense = models.list_models(module=models.segmentation)
    if name in dense:
        network = models.get_model(name, weights=None, weights_backbone=None, num_classes=num_classes)
        return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, None, {}, multiple=1)
    names = models.list_models(module=models)
    if name not in names:
        raise _unknown("torchvision", name, [*names, *dense])
    network = models.get_model(name, weights=None, num_classes=num_classes)
    size = getattr(network, "image_size", None)
    fixed = size if isinstance(size, int) else None
    return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, fixed, {}, own_size=fixed or _TORCHVISION_SIZE)


def _smp(name: str, num_classes: int, in_channels: int) -> Foreign:
    """A network of segmentation-models-pytorch, called ``ARCHITECTURE:ENCODER``."""
    library = importlib.import_module("segmentation_models_pytorch")
    architecture, _, encoder = name.partition(":")
    try:
        network = library.create_model(
            architecture, encoder_name=encoder, encoder_weights=None, in_channels=in_channels, classes=num_classes
        )
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].strip("'\" ").partition(",")[0].partition(". ")[0]
        raise UsageError(
            f"segmentation-models-pytorch cannot build smp:{name} ({reason}); give smp:ARCHITECTURE:ENCODER, such as "
            "smp:deeplabv3plus:resnet101."
        ) from error
    if not is_head_layer(network.segmentation_head[0]):
        raise UsageError(
            f"smp:{name} ends in {network.segmentation_head[0]}, but forgetting needs a 1x1 convolution; "
            "deeplabv3plus, deeplabv3, fpn, linknet and segformer have one."
        )
    config = getattr(getattr(network.encoder, "model", None), "pretrained_cfg", None) or {}
    mean, std = tuple(config.get("mean", IMAGENET_MEAN)), tuple(config.get("std", IMAGENET_STD))
    if in_channels != len(mean):
        mean, std = (sum(mean) / len(mean),) * in_channels, (sum(std) / len(std),) * in_channels
    return Foreign(network, mean, std, None, {}, multiple=int(network.encoder.output_stride))


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
    dense = settings.model_type in _SEGMENTATION_FAMILIES or any(
        architecture.endswith(_DENSE) for architecture in settings.architectures or ()
    )
    kind = transformers.AutoModelForSemanticSegmentation if dense else transformers.AutoModelForImageClassification
    try:
        network = kind.from_config(settings)
    except ValueError as error:
        raise UsageError(f"transformers has no image classifier for {name!r}; give another family.") from error
    if dense:
        settings.architectures = [type(network).__name__]
        return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, None, {"config": settings.to_dict()}, multiple=32)
    size = getattr(settings, "image_size", None)
    # Transformers with position embeddings insist on their size; convolutional networks only mention it.
    fixed = size if isinstance(size, int) and hasattr(settings, "num_attention_heads") else None
    own = size if isinstance(size, int) else None
    return Foreign(network, IMAGENET_MEAN, IMAGENET_STD, fixed, {"config": settings.to_dict()}, own_size=own)
