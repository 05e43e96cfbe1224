"""Name the place of the head in networks of pour, torchvision, timm, transformers and segmentation-models-pytorch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.networks.normalize import NormalizedModel
from pour.models.networks.resnet import ResNet
from pour.models.projecting.projected_head import is_head_layer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["auxiliary_places", "known_place", "library_of"]

_LIBRARIES = ("pour", "torchvision", "timm", "transformers", "segmentation_models_pytorch")
_TORCHVISION_ATTRIBUTES = ("fc", "heads", "head", "classifier")
_TRANSFORMERS_ATTRIBUTES = (
    ("cls_classifier", "distillation_classifier"),
    ("classifier", "classifier_distill"),
    ("head", "dist_head"),
    ("classifier",),
)
_AUXILIARY = ("aux1.fc2", "aux2.fc2", "AuxLogits.fc", "aux_classifier.4")
_WITH_AUXILIARY = ("GoogLeNet", "Inception3", "InceptionV3", "FCN", "DeepLabV3")
_PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Flatten)


def library_of(model: nn.Module) -> str | None:
    """Return the library whose code computes the output of `model`, or None.

    A class of the user counts as a class of the library if it replaces only the constructor.

    Examples:
        >>> library_of(ResNet(3)), library_of(nn.Linear(4, 3))
        ('pour', None)
    """
    if "forward" in vars(model):
        return None
    bases = type(model).__mro__
    depth = next((index for index, cls in enumerate(bases) if _package(cls) in _LIBRARIES), None)
    if depth is None:
        return None
    methods = {
        name
        for cls in bases[:depth]
        for name, value in vars(cls).items()
        if (name == "__call__" or not name.startswith("__"))
        and (callable(value) or isinstance(value, property | classmethod | staticmethod))
    }
    return None if any(hasattr(bases[depth], name) for name in methods) else _package(bases[depth])


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def known_place(model: nn.Module) -> tuple[str, str] | None:
    """Return the dotted name of the head in a network of a library, and the library, or None.

    The names of heads whose scores the library averages (distilled transformers) are joined by commas.

    Examples:
        >>> known_place(ResNet(3)), known_place(nn.Sequential(ResNet(3)))
        (('head', 'pour'), None)
    """
    library = library_of(model)
    layers = [] if library is None else next(_layers(model, library), [])
    names = {id(module): name for name, module in model.named_modules()}
    if library is None or not layers or not all(id(layer) in names for layer in layers):
        return None
    return ",".join(names[id(layer)] for layer in layers), library


def auxiliary_places(model: nn.Module) -> list[str]:
    """Return the names of the heads that GoogLeNet, Inception, FCN and DeepLabV3 of torchvision use in training.

    Examples:
        >>> auxiliary_places(ResNet(3))
        []
    """
    places = []
    for name, module in model.named_modules():
        if type(module).__name__ in _WITH_AUXILIARY and library_of(module) is not None:
            inner = [f"{name}.{place}".strip(".") for place in _AUXILIARY]
            places += [place for place in inner if place in dict(model.named_modules())]
    return places


def _layers(model: nn.Module, library: str) -> Iterator[list[nn.Module]]:
    """Yield the layers that the library uses as the head, or as heads whose scores it averages."""
    places: list[Any] = []
    if isinstance(model, NormalizedModel):
        below = known_place(model.model)
        places = [] if below is None else [[model.model.get_submodule(name) for name in below[0].split(",")]]
    elif isinstance(model, ResNet | ZeroShotClassifier):
        places = [model.head]
    elif library == "timm":
        classifier = getattr(type(model), "get_classifier", lambda _: None)(model)
        # VOLO adds the scores of its tokens.
        tokens = getattr(model, "aux_head", None)
        places = [classifier if tokens is None else [classifier, tokens]]
    elif library == "segmentation_models_pytorch":
        segmentation = getattr(model, "segmentation_head", None)
        # The modules behind the convolution enlarge the map and apply an activation.
        inner = getattr(segmentation, "head", segmentation)
        places = [next(iter(inner))] if inner is segmentation and isinstance(inner, nn.Sequential) else [inner]
    elif library == "transformers" and hasattr(model, "decode_head"):
        places = [getattr(model.decode_head, "classifier", None)]
    elif library == "transformers":
        places = [[getattr(model, name, None) for name in names] for names in _TRANSFORMERS_ATTRIBUTES]
    elif library == "torchvision":
        places = [getattr(model, name, None) for name in _TORCHVISION_ATTRIBUTES]
    for place in places:
        layers = [_last_layer(each) for each in (place if isinstance(place, list | tuple) else [place])]
        if layers and all(layer is not None for layer in layers):
            yield [layer for layer in layers if layer is not None]


def _last_layer(module: object) -> nn.Module | None:
    """Return the linear layer at the end of `module` or of a plain sequence, or None."""
    # The heads of LeViT are a BatchNorm and a linear layer.
    module = getattr(module, "linear", module) if "levit" in type(module).__module__ else module
    while isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        entries = [entry for entry in module if not isinstance(entry, _PASS_THROUGH)]
        module = entries[-1] if entries else None
    return module if isinstance(module, nn.Module) and is_head_layer(module) else None
