"""Build networks of torchvision, timm, transformers and segmentation-models-pytorch."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._torchvision import torchvision_works
from pour.errors import UsageError, nearest_name
from pour.models.projecting.projected_head import is_head_layer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

__all__ = [
    "LIBRARIES",
    "POSITIONS",
    "USER_NETWORKS",
    "USER_NETWORKS_PAGE",
    "LibraryNetwork",
    "build_from_library",
    "fit_positions",
    "installed",
    "library_call",
]

LIBRARIES = {"timm": "vision", "torchvision": "vision", "hf": "hf", "smp": "segmentation"}
"""Prefix of the names of a library's networks, and the extra of pour that installs the library."""
POSITIONS = "pos_embed"
"""Name of the position embeddings in networks of timm."""
USER_NETWORKS_PAGE = "docs/how-to/own-data.md"
"""Page on networks of the user's own code, for messages."""
USER_NETWORKS = f"A network of your own is named FILE.py:NAME or package.module:NAME ({USER_NETWORKS_PAGE})."
"""Last sentence of messages about an unknown architecture."""
_PACKAGES = {"hf": "transformers", "smp": "segmentation_models_pytorch"}
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
_TORCHVISION_SIZE = 224
# transformers also has a classifier of this family, but its published networks segment.
_SEGMENTATION_FAMILIES = frozenset({"segformer"})
_SEGMENTATION_CLASS = "ForSemanticSegmentation"


@dataclass(frozen=True, kw_only=True)
class LibraryNetwork:
    """A network of another library, and the images that it takes."""

    network: nn.Module
    mean: tuple[float, ...] = _IMAGENET_MEAN
    """Channel means."""
    std: tuple[float, ...] = _IMAGENET_STD
    """Channel deviations."""
    fixed_size: int | None = None
    """Only image size that the network takes, or None for any size."""
    trained_size: int | None = None
    """Image size of its published weights, or None if the library does not report it."""
    multiple: int | None = None
    """For a segmentation network: the sides of its images must be multiples of this number. None for a classifier."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further options, with which the network can be built again without a network connection."""


def installed(library: str) -> bool:
    """Return whether the package of a prefix is installed."""
    return importlib.util.find_spec(_PACKAGES.get(library, library)) is not None


def build_from_library(
    library: str,
    name: str,
    num_classes: int,
    in_channels: int,
    *,
    config: Mapping[str, Any] | None = None,
    size: int | None = None,
) -> LibraryNetwork:
    """Build a network with random weights.

    Args:
        library: A key of `LIBRARIES`.
        name: Name of the network in its library.
        num_classes: Number of scores.
        in_channels: Number of channels of the images.
        config: For transformers: configuration of the network, instead of its name.
        size: For timm: image size of a network that takes only one.

    Raises:
        UsageError: The library is not installed, or does not have such a network.
    """
    if not installed(library) or (not torchvision_works() and library != "hf"):
        package = _PACKAGES.get(library, library)
        raise UsageError(
            f'{library}:{name} needs {package}; install it with pip install "pour-unlearning[{LIBRARIES[library]}]".'
        )
    if library == "timm":
        return _timm(name, num_classes, in_channels, size)
    if library == "smp":
        return _smp(name, num_classes, in_channels)
    if in_channels not in (1, 3):
        raise UsageError(
            f"{library}:{name} takes images of 3 channels, not {in_channels}; pass images of 3 channels or grey images."
        )
    return _torchvision(name, num_classes) if library == "torchvision" else _hf(name, num_classes, config)


def library_call(library: str, name: str, options: Mapping[str, Any]) -> str | None:
    """Return the Python expression that builds a network without pour, or None for transformers.

    Args:
        library: A key of `LIBRARIES`.
        name: Name of the network in its library.
        options: Options of its `Architecture`.

    Examples:
        >>> library_call("timm", "resnet18", {"num_classes": 10, "in_channels": 1})
        "timm.create_model('resnet18', num_classes=10, in_chans=1)"
    """
    classes, channels = int(options["num_classes"]), int(options["in_channels"])
    if library == "timm":
        timm = importlib.import_module("timm")
        published, size = timm.get_pretrained_cfg(name), options.get("resize")
        is_sized = size is not None and published is not None and published.fixed_input_size
        image_size = f", img_size={int(size or 0)}" if is_sized else ""
        return f"timm.create_model({name!r}, num_classes={classes}, in_chans={channels}{image_size})"
    if library == "torchvision":
        models = importlib.import_module("torchvision.models")
        backbone = ", weights_backbone=None" if name in models.list_models(module=models.segmentation) else ""
        return f"torchvision.models.get_model({name!r}, weights=None{backbone}, num_classes={classes})"
    if library == "smp":
        architecture, _, encoder = name.partition(":")
        call = f"segmentation_models_pytorch.create_model({architecture!r}, {encoder!r}"
        return f"{call}, encoder_weights=None, in_channels={channels}, classes={classes})"
    return None


def _unknown_name(library: str, name: str, names: Sequence[str]) -> UsageError:
    hint = nearest_name(name, names, f"see the list of {library}'s models.")
    return UsageError(f"{library} has no image classifier called {name!r}; {hint} {USER_NETWORKS}")


def _constants(config: Mapping[str, Any], in_channels: int) -> dict[str, Any]:
    """Return mean and deviation of a timm configuration, averaged for another number of channels."""
    constants = {"mean": tuple(config.get("mean", _IMAGENET_MEAN)), "std": tuple(config.get("std", _IMAGENET_STD))}
    return {
        name: values if len(values) == in_channels else (sum(values) / len(values),) * in_channels
        for name, values in constants.items()
    }


def _timm(name: str, num_classes: int, in_channels: int, size: int | None) -> LibraryNetwork:
    timm = importlib.import_module("timm")
    if not timm.is_model(name):
        raise _unknown_name("timm", name, timm.list_models())
    published = timm.get_pretrained_cfg(name)
    image_size = {"img_size": size} if size is not None and published is not None and published.fixed_input_size else {}
    network = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=in_channels, **image_size)
    config = network.pretrained_cfg
    trained_size = config["input_size"][-1] if "input_size" in config else None
    return LibraryNetwork(
        network=network,
        fixed_size=(size or trained_size) if config.get("fixed_input_size") else None,
        trained_size=trained_size,
        **_constants(config, in_channels),
    )


def fit_positions(network: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` with its position embeddings resampled for a timm network of another image size."""
    expected = dict(network.named_parameters()).get(POSITIONS)
    stored = state.get(POSITIONS)
    grid = getattr(getattr(network, "patch_embed", None), "grid_size", None)
    if expected is None or stored is None or grid is None:
        return dict(state)
    if expected.shape == stored.shape or expected.ndim != stored.ndim:
        return dict(state)
    layers = importlib.import_module("timm.layers")
    prefix = expected.shape[1] - grid[0] * grid[1]
    return {**state, POSITIONS: layers.resample_abs_pos_embed(stored, new_size=list(grid), num_prefix_tokens=prefix)}


def _torchvision(name: str, num_classes: int) -> LibraryNetwork:
    models = importlib.import_module("torchvision.models")
    segmentation = models.list_models(module=models.segmentation)
    if name in segmentation:
        network = models.get_model(name, weights=None, weights_backbone=None, num_classes=num_classes)
        return LibraryNetwork(network=network, multiple=1)
    classifiers = models.list_models(module=models)
    if name not in classifiers:
        raise _unknown_name("torchvision", name, [*classifiers, *segmentation])
    network = models.get_model(name, weights=None, num_classes=num_classes)
    size = getattr(network, "image_size", None)
    fixed_size = size if isinstance(size, int) else None
    return LibraryNetwork(network=network, fixed_size=fixed_size, trained_size=fixed_size or _TORCHVISION_SIZE)


def _smp(name: str, num_classes: int, in_channels: int) -> LibraryNetwork:
    """Build a network of segmentation-models-pytorch, whose name is `ARCHITECTURE:ENCODER`."""
    library = importlib.import_module("segmentation_models_pytorch")
    architecture, _, encoder = name.partition(":")
    try:
        network = library.create_model(
            architecture, encoder_name=encoder, encoder_weights=None, in_channels=in_channels, classes=num_classes
        )
    except (KeyError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0].strip("'\" ").partition(",")[0].partition(". ")[0]
        problem = f"segmentation-models-pytorch cannot build smp:{name} ({reason})"
        raise UsageError(f"{problem}; pass smp:ARCHITECTURE:ENCODER, such as smp:deeplabv3plus:resnet101.") from error
    if not is_head_layer(network.segmentation_head[0]):
        problem = f"smp:{name} ends in {network.segmentation_head[0]}, but forgetting needs a 1x1 convolution"
        raise UsageError(f"{problem}; deeplabv3plus, deeplabv3, fpn, linknet and segformer have one.")
    config = getattr(getattr(network.encoder, "model", None), "pretrained_cfg", None) or {}
    return LibraryNetwork(
        network=network, multiple=int(network.encoder.output_stride), **_constants(config, in_channels)
    )


def _hf(name: str, num_classes: int, config: Mapping[str, Any] | None) -> LibraryNetwork:
    transformers = importlib.import_module("transformers")
    try:
        if config is not None or name in transformers.CONFIG_MAPPING:
            settings = transformers.AutoConfig.for_model(**(config or {"model_type": name}))
        else:
            if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
                # transformers 4 would take the folder's name for the name of a family.
                raise FileNotFoundError(f"{name} has no config.json")
            settings = transformers.AutoConfig.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"transformers has no configuration {name!r}; pass a folder with a config.json, a model of the hub "
            "(with a network connection), or a family such as vit, resnet or convnext."
        ) from error
    if settings.num_labels != num_classes:
        settings.num_labels = num_classes
    segments = settings.model_type in _SEGMENTATION_FAMILIES or any(
        architecture.endswith(_SEGMENTATION_CLASS) for architecture in settings.architectures or ()
    )
    kind = transformers.AutoModelForSemanticSegmentation if segments else transformers.AutoModelForImageClassification
    try:
        network = kind.from_config(settings)
    except ValueError as error:
        raise UsageError(f"transformers has no image classifier for {name!r}; pass another family.") from error
    if segments:
        settings.architectures = [type(network).__name__]
        return LibraryNetwork(network=network, multiple=32, options={"config": settings.to_dict()})
    size = getattr(settings, "image_size", None)
    trained_size = size if isinstance(size, int) else None
    # Transformers with position embeddings take only their own size. Convolutional networks only report theirs.
    fixed_size = trained_size if hasattr(settings, "num_attention_heads") else None
    options = {"config": settings.to_dict()}
    return LibraryNetwork(network=network, fixed_size=fixed_size, trained_size=trained_size, options=options)
