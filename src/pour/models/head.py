"""Find the head: the linear layer whose output is the class scores."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pour.errors import UsageError, warn
from pour.models.card import card_of
from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.networks.normalize import NormalizedModel
from pour.models.networks.resnet import ResNet
from pour.models.projecting.projected_head import ProjectedHead, is_head_layer
from pour.models.unwrap import libraries_of, unwrap
from pour.models.verify_head import fits, gives_scores, returns_output, run_on

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Example", "Head", "find_head"]

Example = Tensor | tuple[Any, ...] | dict[str, Any]
"""One input of a model: a tensor, the positional arguments, or the keyword arguments."""

_FAMILY_ATTRIBUTES = ("fc", "heads", "head", "classifier")
_PASS_THROUGH = (nn.Identity, nn.Dropout, nn.Flatten)
_WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")
_SHOWN = 8


@dataclass(frozen=True)
class Head:
    """The linear layer of a model that maps features z to scores, ``W z + b``."""

    name: str
    """Dotted path inside the model, without compiling or parallel wrappers. Empty for the model itself."""
    module: nn.Module
    """The layer: ``nn.Linear``, a 1x1 ``nn.Conv2d``, or a :class:`ProjectedHead` around one."""

    @property
    def layer(self) -> nn.Linear | nn.Conv2d:
        """Linear layer itself, without its projector."""
        layer = self.module.layer if isinstance(self.module, ProjectedHead) else self.module
        return cast("nn.Linear | nn.Conv2d", layer)

    @property
    def weight(self) -> Tensor:
        """Weight W, C x d, detached. The kernel of a convolution is flattened."""
        return self.layer.weight.detach().flatten(1)

    @property
    def bias(self) -> Tensor | None:
        """Bias b of length C, detached, or None."""
        bias = self.layer.bias
        return None if bias is None else bias.detach()

    @property
    def dim(self) -> int:
        """Dimension of the input that contains the features: -1 for a linear layer, 1 for a convolution."""
        return -1 if isinstance(self.layer, nn.Linear) else 1

    @property
    def num_classes(self) -> int:
        """Number C of scores."""
        layer = self.layer
        return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels

    @property
    def num_features(self) -> int:
        """Width d of the features."""
        layer = self.layer
        return layer.in_features if isinstance(layer, nn.Linear) else layer.in_channels


def find_head(model: nn.Module, *, head: str | None = None, example: Example | None = None) -> Head:
    """Find the layer whose output is the class scores.

    In this order: the layer called ``head``; a head with a projector; the head in the model's card; the known place in
    models of pour, torchvision, timm and transformers; the only linear layer of the model.

    With ``example`` the layer is verified: the scores that the model returns must be the output of this layer, also
    after a softmax, a temperature or another increasing function of each score, an average over positions or the
    enlarging of a map. If this layer does not give the scores, every layer is tried.

    Args:
        model: Any classifier, which is not changed.
        head: Dotted name of the layer.
        example: A small batch for the model: a tensor, a tuple of arguments or a dict of keyword arguments.

    Raises:
        UsageError: The model has no linear layer, or several layers could be the head, or none gives the scores. The
            message lists them.

    Warns:
        PourWarning: The layer ``head`` could not be verified.

    Example:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> find_head(model, example=torch.zeros(1, 8)).name
        '2'
    """
    model = unwrap(model)
    name = _recorded_name(model) if head is None else _layer_name(model, head)
    if name is not None:
        layer = _checked(model, name)
        if example is not None:
            _verify_named(model, layer, example)
        return layer
    suggested = _family(model)
    candidates = [name for name, module in model.named_modules() if is_head_layer(module)]
    if suggested is None and not candidates:
        raise UsageError(
            "The model has no linear layer or 1x1 convolution that could be its head; "
            "pour works on classifiers that end in one."
        )
    if example is None:
        return _checked(model, suggested if suggested is not None else _single(model, candidates))
    return _verified(model, suggested, candidates, example)


def _recorded_name(model: nn.Module) -> str | None:
    """Return the name of the head with a projector, or the name in the model's card, or None."""
    projected = [name for name, module in model.named_modules() if isinstance(module, ProjectedHead)]
    if len(projected) > 1:
        raise _ambiguous(model, projected)
    name = card_of(model).head
    if projected or name is None:
        return next(iter(projected), None)
    return _layer_name(model, name)


def _checked(model: nn.Module, name: str) -> Head:
    """Return the head called ``name``. Raise UsageError if it has no weights yet or only one class."""
    head = _initialised(model, name)
    if head.num_classes < 2:
        raise UsageError(f"The head {name!r} gives a single score; pour needs one score per class, so at least two.")
    return head


def _initialised(model: nn.Module, name: str) -> Head:
    """Return the head called ``name``. Raise UsageError if it has no weights yet."""
    head = Head(name, model.get_submodule(name))
    if isinstance(head.layer.weight, UninitializedParameter):
        raise UsageError(f"The head {name!r} has no weights yet; run the model once on an example first.")
    return head


def _layer_name(model: nn.Module, name: str) -> str:
    """Return the dotted name of a linear layer, or of the head around it. Raise UsageError for any other name."""
    if not isinstance(name, str):
        raise UsageError(f"head= is the dotted name of a layer, such as 'fc', not a {type(name).__name__}.")
    modules = dict(model.named_modules())
    if name not in modules:
        # The name may belong to the model inside a compiling or parallel wrapper.
        name = _WRAPPERS.sub("", name)
    layers = [path for path, module in modules.items() if is_head_layer(module)]
    if name not in modules:
        close = difflib.get_close_matches(name, layers, n=3, cutoff=0.3) or layers[-3:]
        raise UsageError(f"The model has no layer called {name!r}; its linear layers include {', '.join(close)}.")
    parent = name.rpartition(".")[0]
    if name and isinstance(modules[parent], ProjectedHead):
        return parent
    if isinstance(modules[name], ProjectedHead) or is_head_layer(modules[name]):
        return name
    below = [path for path in layers if path.startswith(f"{name}.")]
    fix = f"the linear layers in it are {', '.join(below[:_SHOWN])}" if below else "give the name of one"
    raise UsageError(
        f"The layer {name!r} is a {type(modules[name]).__name__}, not nn.Linear or a 1x1 nn.Conv2d; {fix}."
    )


def _family(model: nn.Module) -> str | None:
    """Return the name of the head of a model of pour or of a known library, or None."""
    if is_head_layer(model):
        return ""
    if isinstance(model, NormalizedModel):
        below = _family(model.model)
        return None if below is None else f"model.{below}".rstrip(".")
    if isinstance(model, ResNet | ZeroShotClassifier):
        return "head"
    libraries = libraries_of(model)
    layer: object = None
    classifier = getattr(model, "get_classifier", None)
    if "timm" in libraries and callable(classifier):
        layer = classifier()
    elif "segmentation_models_pytorch" in libraries:
        # Behind the convolution are the enlarging and an activation.
        layer = next(iter(getattr(model, "segmentation_head", None) or ()), None)
    elif "transformers" in libraries and hasattr(model, "decode_head"):
        layer = getattr(model.decode_head, "classifier", None)
    elif libraries & {"torchvision", "transformers"}:
        layers = (_last_layer(getattr(model, attribute, None)) for attribute in _FAMILY_ATTRIBUTES)
        layer = next((layer for layer in layers if layer is not None), None)
    if not isinstance(layer, nn.Module) or not is_head_layer(layer):
        return None
    return next((name for name, module in model.named_modules() if module is layer), None)


def _last_layer(module: object) -> nn.Module | None:
    """Return the linear layer at the end of ``module`` or of a plain sequence, or None."""
    while isinstance(module, nn.Sequential):
        entries = [entry for entry in module if not isinstance(entry, _PASS_THROUGH)]
        module = entries[-1] if entries else None
    return module if isinstance(module, nn.Module) and is_head_layer(module) else None


def _single(model: nn.Module, candidates: Sequence[str]) -> str:
    """Return the only layer that could be the head. Raise UsageError if there are several, or if it is not the last.

    That is the only ``nn.Linear`` if no 1x1 convolution follows it, or the only 1x1 convolution if no other layer with
    weights follows it: a gate or a shortcut is no head.
    """
    linear = [name for name in candidates if isinstance(model.get_submodule(name), nn.Linear)]
    if linear == [candidates[-1]]:
        return candidates[-1]
    weighted = [
        name for name, module in model.named_modules() if next(module.parameters(recurse=False), None) is not None
    ]
    if not linear and len(candidates) == 1 and weighted[-1] == candidates[0]:
        return candidates[0]
    layers = _listed(model, candidates[-_SHOWN:])
    problem = (
        f"The model has one linear layer, {layers}, but others with weights come after it"
        if len(candidates) == 1
        else f"The model has {len(candidates)} linear layers and any could be its head, among them {layers}"
    )
    raise UsageError(f"{problem}; name the head with head=, or pass example= (a small batch of images).")


def _verified(model: nn.Module, suggested: str | None, candidates: Sequence[str], example: Example) -> Head:
    """Return the suggested head if it gives the scores, otherwise the only layer that gives them."""
    if suggested is not None:
        head = _checked(model, suggested)
        if gives_scores(model, head, example):
            return head
    heads = [_initialised(model, name) for name in candidates]
    output = run_on(model, example)
    fitting = [head for head in heads if fits(head, output)]
    if all(head.num_classes < 2 for head in fitting):
        for head in fitting:
            _checked(model, head.name)
        layers = _listed(model, candidates[-_SHOWN:])
        problem = f"No linear layer gives as many scores as the model; its linear layers are {layers}"
        raise UsageError(f"{problem}. Give a model that ends in nn.Linear or a 1x1 nn.Conv2d.")
    fitting = [head for head in fitting if head.num_classes > 1]
    giving = [head for head in fitting if gives_scores(model, head, example, anywhere=True)]
    if len(giving) > 1:
        # An embedding behind an activation may be returned next to the scores.
        giving = [head for head in giving if returns_output(model, head, example)] or giving
    if len(giving) > 1:
        raise _ambiguous(model, [head.name for head in giving])
    if giving and gives_scores(model, giving[0], example):
        return giving[0]
    layers, has = _listed(model, [head.name for head in fitting]), "have" if len(fitting) > 1 else "has"
    problem = f"No linear layer gives the model's scores, although {layers} {has} as many outputs"
    raise UsageError(f"{problem}; give a model that ends in its head, or name the head with head=.")


def _verify_named(model: nn.Module, head: Head, example: Example) -> None:
    """Raise UsageError if another layer gives the model's scores. Warn if no layer does."""
    if gives_scores(model, head, example):
        return
    output = run_on(model, example)
    if not fits(head, output):
        problem = f"The head {head.name!r} gives {head.num_classes} scores, but the model another number"
        raise UsageError(f"{problem}; name the layer that gives its scores with head=.")
    # An existing projector is not moved to another layer.
    layers = [] if isinstance(head.module, ProjectedHead) else list(model.named_modules())
    others = [Head(name, module) for name, module in layers if is_head_layer(module) and module is not head.layer]
    giving = [other.name for other in others if fits(other, output) and gives_scores(model, other, example)]
    if giving:
        problem = f"The model's scores are not the output of {head.name!r}, but of {giving[-1]!r}"
        raise UsageError(f"{problem}; name it with head={giving[-1]!r}.")
    warn(
        f"The model's scores are not the output of its head {head.name!r}: the model changes them before it returns "
        "them, so check the scores of the result."
    )


def _listed(model: nn.Module, names: Sequence[str]) -> str:
    heads = [Head(name, model.get_submodule(name)) for name in names[:_SHOWN]]
    return ", ".join(f"{head.name} ({head.num_classes} x {head.num_features})" for head in heads)


def _ambiguous(model: nn.Module, names: Sequence[str]) -> UsageError:
    return UsageError(
        f"{len(names)} layers could be the head: {_listed(model, names)}; choose one with head={names[-1]!r}."
    )
