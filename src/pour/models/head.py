"""Find the head: the linear layer whose output is the class scores."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from pour.errors import UsageError
from pour.models.card import card_of
from pour.models.known_places import auxiliary_places, known_place
from pour.models.linear_form import LinearForm, form_of, has_form, linear_form
from pour.models.projecting.projected_head import ProjectedHead, is_head_layer
from pour.models.prove_head import structure_proves
from pour.models.unwrap import unwrap, why_unreadable
from pour.models.verify_head import fits, gives_scores, modules_behind, returns_output, run_on

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Example", "Head", "find_head", "heads_of", "named_head"]

Example = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""One input of a model: a tensor, the positional arguments, or the keyword arguments."""

_WRAPPERS = re.compile(r"^((module|_orig_mod)\.)+")
_MOST_LISTED = 8
_NAMED = "named by the caller"
_VERIFIED = "verified on an input"
_BY_CODE = "proved by the code of the model"
_REMEDY = "pass example= (a small batch of inputs), on which the head is verified, or see pour inspect."
_END_IN_A_HEAD = (
    "move the computation of the scores into a module of its own, which takes the features and returns the scores "
    "(nn.Linear, a 1x1 nn.Conv2d or a cosine head), and name it with head=."
)


@dataclass(frozen=True)
class Head:
    """The layer of a model that maps features z to scores, `W z + b`, or `W z / |z|` (a cosine head)."""

    name: str
    """Dotted path inside the model, without compiling or parallel wrappers. Empty for the model itself."""
    module: nn.Module
    """The layer: `nn.Linear`, a 1x1 `nn.Conv2d`, a module that computes the same or a cosine, or a
    `ProjectedHead` around one."""
    found_by: str = field(default="named by the caller", compare=False)
    """Part of a sentence: how the layer was found, and how its output was proved to be the scores."""
    further_heads: tuple[Head, ...] = ()
    """Further heads, whose scores the model averages with the scores of this head. `weight`, `bias` and the features
    of all heads together are those of a single linear layer on the joined features."""

    @property
    def names(self) -> str:
        """Dotted names of this head and of the further heads, joined by commas."""
        return ",".join((self.name, *(head.name for head in self.further_heads)))

    @property
    def each(self) -> tuple[Head, ...]:
        """This head and the further heads, each as a single head."""
        return (dataclasses.replace(self, further_heads=()), *self.further_heads)

    @property
    def layer(self) -> Any:
        """Layer itself, without its projector: `nn.Linear`, `nn.Conv2d`, or a module of another form."""
        return self.module.layer if isinstance(self.module, ProjectedHead) else self.module

    @property
    def form(self) -> LinearForm:
        """Weight, C x d, and bias, detached. The weight of a cosine head is normalised as in its forward pass."""
        if not self.further_heads:
            return form_of(self.layer)
        forms = [head.form for head in self.each]
        biases = [form.bias for form in forms if form.bias is not None]
        return LinearForm(
            rows=torch.cat([form.rows for form in forms], dim=1) / len(forms),
            bias=torch.stack(biases).sum(dim=0) / len(forms) if biases else None,
            is_cosine=forms[0].is_cosine,
        )

    @property
    def weight(self) -> Tensor:
        """Weight W, C x d, detached. The kernel of a convolution is flattened."""
        return self.form.rows

    @property
    def bias(self) -> Tensor | None:
        """Bias b of length C, detached, or None."""
        return self.form.bias

    @property
    def dim(self) -> int:
        """Dimension of the input that contains the features: -1 for a linear layer, 1 for a convolution."""
        return 1 if isinstance(self.layer, nn.Conv2d) else -1

    @property
    def num_classes(self) -> int:
        """Number C of scores."""
        return self._shape[0]

    @property
    def num_features(self) -> int:
        """Width d of the features."""
        return self._shape[1]

    @cached_property
    def _shape(self) -> tuple[int, int]:
        layer = self.layer
        if self.further_heads:
            return self.each[0].num_classes, sum(head.num_features for head in self.each)
        if isinstance(layer, nn.Linear):
            return layer.out_features, layer.in_features
        if isinstance(layer, nn.Conv2d):
            return layer.out_channels, layer.in_channels
        classes, width = self.form.rows.shape
        return classes, width


def find_head(model: nn.Module, *, head: str | Sequence[str] | None = None, example: Example | None = None) -> Head:
    """Find the layer whose output is the class scores, and verify it.

    The first of these is taken:

    1. The layer called `head`.
    2. A head with a projector.
    3. The head in the model's card.
    4. The known head of models of pour, torchvision, timm, transformers and segmentation-models-pytorch.
    5. Another linear layer.

    With `example` the layer is verified: its output must be the scores that the model returns. The model may still
    apply a softmax, a temperature or another increasing function to each score, average over positions, or enlarge a
    map. If the output of this layer is not the scores, every layer is tried. Without `example` the code of the model
    must prove the same, see `structure_proves`. A recorded head was verified when it was recorded.

    Args:
        model: Any classifier, which is not changed.
        head: Dotted name of the layer. Several names, in a list or joined by commas, are heads whose scores the model
            averages or adds.
        example: A small batch for the model: a tensor, a tuple of arguments or a mapping of keyword arguments.

    Raises:
        UsageError: The model has no linear layer, several layers could be the head, no layer returns the scores, or
            the code of the model does not prove which layer returns them. The message lists the layers.

    Examples:
        >>> import torch
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> find_head(model, example=torch.zeros(1, 8)).name
        '2'
        >>> find_head(model).found_by
        'the last layer, proved by the code of the model'
    """
    model = unwrap(model)
    recorded = _recorded_name(model)
    if head is not None:
        name = _layer_name(model, head)
        return _proved(model, _checked(model, name, _NAMED), example, is_recorded=name == recorded)
    if recorded is not None:
        is_projected = isinstance(model.get_submodule(recorded.split(",")[0]), ProjectedHead)
        found_by = "the layer with a projector" if is_projected else "recorded in the model's card"
        return _proved(model, _checked(model, recorded, found_by), example, is_recorded=True)
    place = known_place(model)
    candidates = [name for name, module in model.named_modules() if is_head_layer(module)]
    if example is None:
        return _proved_candidate(model, place, candidates)
    return _verified_candidate(model, place, candidates, example)


def heads_of(model: nn.Module, head: Head) -> tuple[Head, ...]:
    """Return the heads that a request changes: `head`, its further heads, and the heads used in training alone.

    Examples:
        >>> model = nn.Sequential(nn.Linear(4, 3))
        >>> [head.name for head in heads_of(model, find_head(model))]
        ['0']
    """
    others = (_initialised(model, name, "used in training alone") for name in auxiliary_places(model))
    return (*head.each, *(other for other in others if other.num_classes == head.num_classes))


def named_head(model: nn.Module, name: str | Sequence[str] | None) -> Head:
    """Return the head called `name`, without verifying it again. Without a name, find the head.

    Examples:
        >>> named_head(nn.Sequential(nn.Linear(4, 3)), "0").num_classes
        3
    """
    if name is None:
        return find_head(model)
    model = unwrap(model)
    return _checked(model, _layer_name(model, name), _NAMED)


def _recorded_name(model: nn.Module) -> str | None:
    """Return the name of the head with a projector, or the name in the model's card, or None."""
    auxiliary = auxiliary_places(model)
    modules = [name for name, module in model.named_modules() if isinstance(module, ProjectedHead)]
    projected = [name for name in modules if name not in auxiliary]
    name = card_of(model).head
    if len(projected) > 1 and sorted((name or "").split(",")) != sorted(projected):
        raise _ambiguous(model, projected)
    if (projected and len(projected) == 1) or name is None:
        return next(iter(projected), None)
    return _layer_name(model, name)


def _checked(model: nn.Module, name: str, found_by: str) -> Head:
    """Return the head called `name`.

    Raises:
        UsageError: It has no weights, or only one class, or computes more than `W z + b`.
    """
    head = _initialised(model, name, found_by)
    counts = {each.name: each.num_classes for each in head.each}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} {count}" for key, count in counts.items())
        raise UsageError(f"The heads return different numbers of scores ({listed}); name heads of the same classes.")
    if head.num_classes < 2:
        raise UsageError(
            f"The head {name!r} returns a single score, but pour needs one score per class; replace it by nn.Linear "
            "with two rows, zeros and its row, and two biases, 0 and its bias."
        )
    # Raises for a layer of another form.
    _ = head.form
    return head


def _initialised(model: nn.Module, name: str, found_by: str) -> Head:
    """Return the head called `name`, or several heads joined. Raise UsageError without floating-point weights."""
    if "," in name:
        first, *others = (_initialised(model, each, found_by) for each in name.split(","))
        return dataclasses.replace(first, further_heads=tuple(others))
    head = Head(name, model.get_submodule(name), found_by)
    if any(isinstance(parameter, UninitializedParameter) for parameter in head.layer.parameters()):
        raise UsageError(f"The head {name!r} has no weights yet; run the model once on an example first.")
    weight = getattr(head.layer, "weight", None)
    if isinstance(weight, Tensor) and not weight.is_floating_point():
        problem = f"The weights of the head {name!r} are quantised ({weight.dtype})"
        raise UsageError(f"{problem}; forget with the floating-point model and quantise the result.")
    return head


def _layer_name(model: nn.Module, name: str | Sequence[str]) -> str:
    """Return the dotted name of a linear layer, or of the head around it. Raise UsageError for any other name.

    Several names are joined by commas.
    """
    several = name.split(",") if isinstance(name, str) else name
    if isinstance(several, list | tuple) and (len(several) > 1 or (several and not isinstance(name, str))):
        names = [_layer_name(model, each.strip() if isinstance(each, str) else each) for each in several]
        return ",".join(dict.fromkeys(names))
    if not isinstance(name, str):
        raise UsageError(f"head= is the dotted name of a layer, such as 'fc', not a {type(name).__name__}.")
    modules = dict(model.named_modules())
    if name not in modules:
        # The name may belong to the model inside a compiling or parallel wrapper.
        name = _WRAPPERS.sub("", name)
    layers = [path for path, module in modules.items() if is_head_layer(module)]
    if name not in modules:
        if not layers:
            raise UsageError(_no_linear_layer(model))
        close = difflib.get_close_matches(name, layers, n=3, cutoff=0.3) or layers[-3:]
        raise UsageError(f"The model has no layer called {name!r}; its linear layers include {', '.join(close)}.")
    parent = name.rpartition(".")[0]
    if name and isinstance(modules[parent], ProjectedHead):
        return parent
    if isinstance(modules[name], ProjectedHead) or is_head_layer(modules[name]):
        return name
    if why_unreadable(modules[name]) is not None:
        raise UsageError(str(why_unreadable(model)))
    if has_form(modules[name]):
        return name
    kind = type(modules[name])
    below = [path for path in layers if path.startswith(f"{name}.")]
    fix = _advice(model) or ("pass the name of one." if layers else _END_IN_A_HEAD)
    if below:
        fix = f"the linear layers in it are {', '.join(below[:_MOST_LISTED])}."
    raise UsageError(f"The layer {name!r} is a {kind.__name__}, not nn.Linear or a 1x1 nn.Conv2d; {fix}")


def _other_forms(model: nn.Module) -> list[str]:
    """Return the modules of other classes that compute `W z + b` or cosines. Of nested modules, the innermost."""
    names = [name for name, module in model.named_modules() if not is_head_layer(module) and has_form(module)]
    names = [name for name in names if not _contains_its_layer(model.get_submodule(name))]
    return [name for name in names if not any(other != name and f".{other}".startswith(f".{name}") for other in names)]


def _contains_its_layer(module: nn.Module) -> bool:
    """Return whether a module that is no cosine head calls a linear layer with as many outputs as itself."""
    called: set[nn.Module] = set()
    with contextlib.ExitStack() as hooks:
        for part in filter(is_head_layer, module.modules()):
            hooks.enter_context(part.register_forward_hook(lambda layer, *_: called.add(layer)))
        form = form_of(module)
    return not form.is_cosine and any(len(form_of(part).rows) == len(form.rows) for part in called)


def _around(model: nn.Module, name: str) -> str:
    """Return the name of the cosine head that uses the layer's weight without calling the layer, otherwise `name`.

    The projector must be in front of the normalisation of this head.
    """
    parts = name.split(".")
    for depth in reversed(range(len(parts) if name else 0)):
        calls: list[None] = []
        parent = ".".join(parts[:depth])
        with model.get_submodule(name).register_forward_hook(lambda *_, calls=calls: calls.append(None)):
            form = linear_form(model.get_submodule(parent))
        if form is not None and form.is_cosine and not calls:
            return parent
    return name


def _no_linear_layer(model: nn.Module) -> str:
    """Return the error message for a model without a linear layer."""
    problem = "The model has no linear layer or 1x1 convolution that could be its head"
    return why_unreadable(model) or f"{problem}; {_advice(model) or _END_IN_A_HEAD}"


def _proved(model: nn.Module, head: Head, example: Example | None, *, is_recorded: bool) -> Head:
    """Return `head` with its proof. Raise UsageError if neither the example nor the code of the model proves it."""
    if example is not None:
        _verify(model, head, example)
        return dataclasses.replace(head, found_by=f"{head.found_by}, {_VERIFIED}")
    if is_recorded:
        return head
    if not structure_proves(model, head.names, named=True):
        raise UsageError(
            f"The code of the model does not prove that its scores are the output of {head.names!r}; "
            f"{_advice(model) or _REMEDY}"
        )
    return dataclasses.replace(head, found_by=f"{head.found_by}, {_BY_CODE}")


def _proved_candidate(model: nn.Module, place: tuple[str, str] | None, candidates: Sequence[str]) -> Head:
    """Return the head of a library, or the only layer that the code of the model proves to be the head."""
    if place is not None:
        return _checked(model, place[0], f"the place that {place[1]} names")
    # No layer behind the head can pass this check, so the last layer that passes is the head.
    for name in reversed(candidates):
        if structure_proves(model, name):
            return _checked(model, _around(model, name), f"the last layer, {_BY_CODE}")
    forms = _other_forms(model)
    for name in forms:
        if structure_proves(model, name):
            return _checked(model, name, f"the last layer, {_BY_CODE}")
    listed = [*candidates, *forms]
    if not listed:
        raise UsageError(_no_linear_layer(model))
    layers = _listed(model, listed[-_MOST_LISTED:])
    raise UsageError(
        f"The code of the model does not prove which layer gives its scores; among its linear layers are {layers}; "
        f"{_advice(model) or _REMEDY}"
    )


def _verified_candidate(
    model: nn.Module, place: tuple[str, str] | None, candidates: Sequence[str], example: Example
) -> Head:
    """Return the head of a library if its output is the scores, otherwise the only layer whose output they are."""
    if place is not None:
        head = _checked(model, place[0], f"the place that {place[1]} names, {_VERIFIED}")
        if gives_scores(model, head, example):
            return head
    output = run_on(model, example)
    heads = [_initialised(model, name, _VERIFIED) for name in candidates]
    fitting = [head for head in heads if fits(head, output)]
    giving = _giving(model, fitting, example)
    if not giving:
        # If nested modules all return the scores, the head is the linear layer inside, which was tried first.
        forms = [_initialised(model, name, _VERIFIED) for name in _other_forms(model)]
        heads += forms
        fitting += (others := [head for head in forms if fits(head, output)])
        giving = _giving(model, others, example)
    if not heads:
        raise UsageError(_no_linear_layer(model))
    if all(head.num_classes < 2 for head in fitting):
        for head in fitting:
            _checked(model, head.name, _VERIFIED)
        layers = _listed(model, [head.name for head in heads][-_MOST_LISTED:])
        problem = f"No linear layer gives as many scores as the model; its linear layers are {layers}"
        raise UsageError(f"{problem}; {_advice(model) or _END_IN_A_HEAD}")
    together = None if giving else _together(model, fitting, example)
    if together is not None:
        return together
    if len(giving) > 1:
        raise _ambiguous(model, [head.name for head in giving])
    if giving and gives_scores(model, giving[0], example):
        return _checked(model, _around(model, giving[0].name), _VERIFIED)
    fitting = [head for head in fitting if head.num_classes > 1]
    layers, has = _listed(model, [head.name for head in fitting]), "have" if len(fitting) > 1 else "has"
    problem = f"No linear layer gives the model's scores, although {layers} {has} as many outputs"
    raise UsageError(f"{problem}; {_advice(model) or _changed_scores(model, fitting[-1], example)}")


def _together(model: nn.Module, heads: Sequence[Head], example: Example) -> Head | None:
    """Return heads whose scores the model averages or adds, otherwise None."""
    for count in {head.num_classes for head in heads if head.num_classes > 1}:
        group = [head for head in heads if head.num_classes == count]
        # A layer that is not called, or does not change the scores, is none of them. So each layer is left out once.
        for left_out in (None, *group):
            rest = [head for head in group if head is not left_out]
            if len(rest) > 1:
                joined = dataclasses.replace(rest[0], further_heads=tuple(rest[1:]))
                if gives_scores(model, joined, example):
                    return _checked(model, joined.names, f"heads whose scores the model averages, {_VERIFIED}")
    return None


def _giving(model: nn.Module, heads: Sequence[Head], example: Example) -> list[Head]:
    """Return the layers whose output the model returns as one of its outputs."""
    giving = [head for head in heads if gives_scores(model, head, example, anywhere=True)]
    if len(giving) > 1:
        # An embedding behind an activation may be returned next to the scores.
        return [head for head in giving if returns_output(model, head, example)] or giving
    return giving


def _verify(model: nn.Module, head: Head, example: Example) -> None:
    """Raise UsageError if `head` does not give the model's scores."""
    if gives_scores(model, head, example):
        return
    output = run_on(model, example)
    if not fits(head, output):
        problem = f"The head {head.names!r} gives {head.num_classes} scores, but the model another number"
        raise UsageError(f"{problem}; {_advice(model) or 'name the layer that gives its scores with head=.'}")
    # An existing projector is not moved to another layer.
    layers = [] if isinstance(head.module, ProjectedHead) or head.further_heads else list(model.named_modules())
    others = [Head(name, module) for name, module in layers if is_head_layer(module) and module is not head.layer]
    giving = [other.name for other in others if fits(other, output) and gives_scores(model, other, example)]
    if giving:
        problem = f"The model's scores are not the output of {head.name!r}, but of {giving[-1]!r}"
        raise UsageError(f"{problem}; name it with head={giving[-1]!r}.")
    if head.further_heads:
        raise UsageError(
            f"The model's scores are not the mean or sum of its heads {head.names!r}; name the layers that give them."
        )
    group = [other for other in others if other.num_classes == head.num_classes]
    together = _together(model, [head, *group], example) if group else None
    if together is not None:
        problem = f"The model averages the scores of {len(together.each)} heads, {together.names}"
        raise UsageError(f"{problem}; name them all with head={together.names.split(',')}.")
    problem = f"The model's scores are not the output of its head {head.name!r}"
    raise UsageError(f"{problem}; {_changed_scores(model, head, example)}")


def _changed_scores(model: nn.Module, head: Head, example: Example) -> str:
    """Return a part of a message: the modules that run behind the layer, and the remedy."""
    later = modules_behind(model, head, example)
    behind = ", ".join(f"{name} ({type(model.get_submodule(name)).__name__})" for name in later[:_MOST_LISTED])
    if not behind:
        return _END_IN_A_HEAD
    return f"behind it run {behind}; put nn.Identity in the place of those that change the scores."


def _advice(model: nn.Module) -> str:
    """Return the remedy for a segmentation network whose last convolution is no head, or '' for other networks."""
    segmentation = getattr(model, "segmentation_head", None)
    last = next(iter(segmentation), None) if isinstance(segmentation, nn.Sequential) else None
    if not isinstance(last, nn.Conv2d) or is_head_layer(last):
        return ""
    kernel = "x".join(map(str, last.kernel_size))
    return (
        f"its last layer, segmentation_head.0, is a {kernel} convolution: put "
        f"nn.Conv2d({last.in_channels}, {last.out_channels}, 1) in its place and train it, or take DeepLabV3Plus, FPN, "
        "Linknet or Segformer."
    )


def _listed(model: nn.Module, names: Sequence[str]) -> str:
    heads = [Head(name, model.get_submodule(name)) for name in names[:_MOST_LISTED]]
    return ", ".join(f"{head.name} ({head.num_classes} x {head.num_features})" for head in heads)


def _ambiguous(model: nn.Module, names: Sequence[str]) -> UsageError:
    return UsageError(
        f"{len(names)} layers could be the head: {_listed(model, names)}; choose one with head={names[-1]!r}."
    )
