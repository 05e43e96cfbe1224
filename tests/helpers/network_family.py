"""A family of networks: how it is built, which layers are its heads, and what ``pour.forget`` must make of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from pour.models import forget

CLASSES = 7
FORGOTTEN = [1, 4]
WAYS = ("found", "example", "named", "named, example", "wrong", "wrong, example")
"""No hint; ``example=``; ``head=`` with the right layers, or with another layer, and both with ``example=``."""
ANOTHER_LAYER = (
    r"head=|example=|its linear layers include|pass the name of one|put nn\.Identity|[Mm]ove the computation"
)
"""Words of the remedy if ``head=`` names a layer that does not give the scores."""

Scores = list[Tensor]
"""Every tensor of scores in a network's output, with the classes in dimension 1 or else in the last."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Family:
    """Networks of one kind."""

    build: Callable[[], nn.Module]
    heads: tuple[str, ...] = ()
    """Dotted names of the layers that give the scores."""
    named: str | None = None
    """What ``head=`` names: by default the heads."""
    wrong: str = "no_such_layer"
    """Another layer, which a user might take for the head."""
    inputs: Callable[[], Any] = field(default=lambda: images())
    """What the network accepts: a batch of images, or a dict of keyword arguments."""
    refused: str | Mapping[str, str] = field(default_factory=dict)
    """Words of the remedy: for every way, or for each way that is refused. "mask" stands for the mask alone."""
    oracle: Callable[[nn.Module, Any], Any] | None = None
    """Output of the float64 network if its features z become P z, for networks without a head module."""
    scores: Callable[[Any], Scores] = field(default=lambda output: all_scores(output))
    """The scores in an output."""
    is_half: bool = False
    """Whether the head rounds to half precision or bfloat16."""
    probabilities: bool = False
    """Whether the network returns probabilities, so that those of a masked class are exactly 0."""
    is_slow: bool = False

    def remedy(self, way: str, *, mask: bool = False) -> str | None:
        """Words of the expected error, or None if the result must be exact."""
        always = self.refused if isinstance(self.refused, str) else None
        each = {} if isinstance(self.refused, str) else self.refused
        if way.startswith("wrong"):
            return each.get(way) or (f"{ANOTHER_LAYER}|{always}" if always else ANOTHER_LAYER)
        return always or each.get(way) or (each.get("mask") if mask else None)

    def options(self, way: str) -> dict[str, Any]:
        """The arguments of ``pour.forget`` that describe the head."""
        heads = self.heads[0] if len(self.heads) == 1 else [*self.heads]
        layer = {"named": self.named or heads or "no_such_layer", "wrong": self.wrong}.get(way.partition(",")[0])
        return ({} if layer is None else {"head": layer}) | ({"example": self.inputs()} if "example" in way else {})


def images(size: int = 32, count: int = 3, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, 3, size, size, generator=torch.Generator().manual_seed(1)).to(dtype)


def run(model: nn.Module, inputs: Any) -> Any:
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, Mapping) else model(inputs)


def all_scores(output: object) -> Scores:
    """All tensors of an output with one column per class."""
    if isinstance(output, Tensor):
        has_classes = output.is_floating_point() and output.ndim > 1 and CLASSES in (output.shape[1], output.shape[-1])
        return [output] if has_classes else []
    if isinstance(output, Mapping):
        return [scores for value in output.values() for scores in all_scores(value)]
    if isinstance(output, Iterable) and not isinstance(output, str):
        return [scores for value in output for scores in all_scores(value)]
    return [scores for value in vars(output).values() for scores in all_scores(value)] if output is not None else []


def columns(scores: Tensor) -> Tensor:
    """The scores as a table with one row per image or position."""
    dim = 1 if scores.shape[1] == CLASSES else -1
    return scores.movedim(dim, -1).reshape(-1, CLASSES)


def without(rows: Tensor, forgotten: Iterable[int] = FORGOTTEN) -> Tensor:
    """The orthogonal projector P whose kernel is spanned by the rows of the forgotten classes, in float64."""
    span = rows.detach().flatten(1)[list(forgotten)].double()
    return torch.eye(span.shape[1], dtype=torch.float64) - torch.linalg.pinv(span) @ span


def doubled(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).double()


def in_double(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: in_double(value) for name, value in inputs.items()}
    return inputs.double() if inputs.is_floating_point() else inputs


def projecting_heads(model: nn.Module, heads: Iterable[str], forgotten: Iterable[int] = FORGOTTEN) -> nn.Module:
    """The network in float64 with ``z -> P z`` in front of each head, P from the head's own rows."""
    reference = doubled(model)
    for name in heads:
        layer = reference.get_submodule(name)
        dim = 1 if isinstance(layer, nn.Conv1d | nn.Conv2d) else -1
        projector = without(layer.weight, forgotten)

        def project(module: nn.Module, args: Any, *, dim: int = dim, projector: Tensor = projector) -> Any:
            return ((args[0].movedim(dim, -1) @ projector).movedim(-1, dim), *args[1:])

        layer.register_forward_pre_hook(project)
    return reference


def prepared(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with BatchNorm statistics and last layers that are not trivial."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d) and module.running_var is not None:
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
        # Several libraries start the head at zero, which has no directions.
        if isinstance(module, nn.Linear | nn.Conv2d) and module.weight.shape[0] == CLASSES:
            for parameter in module.parameters():
                if parameter.is_floating_point() and not parameter.is_meta and not parameter.is_inference():
                    nn.init.normal_(parameter, std=0.3)
    return model.eval()


@lru_cache(maxsize=4)
def built(family: Family) -> nn.Module:
    """The network of a family, always with the same weights."""
    torch.manual_seed(3)
    return family.build()


@lru_cache(maxsize=4)
def expected_output(family: Family) -> tuple[Scores, Scores, Scores]:
    """The oracle's scores after forgetting, the scores of the network itself, and the latter in float64."""
    model, inputs = built(family), family.inputs()
    reference = family.oracle or (lambda model, inputs: run(projecting_heads(model, family.heads), inputs))
    before = run(model, inputs)
    with torch.no_grad():
        wide = run(doubled(model), in_double(inputs))
        after = reference(model if family.oracle is None else doubled(model), in_double(inputs))
    return family.scores(after), family.scores(before), family.scores(wide)


def forget_exactly(family: Family, way: str) -> None:
    """Raise AssertionError unless ``W P z + b`` of pour is that of the oracle."""
    model, inputs = built(family), family.inputs()
    forgotten = forget(model, FORGOTTEN, direction="weights", forgotten_logit="keep", **family.options(way))
    after, before, wide = expected_output(family)
    results = family.scores(run(forgotten, inputs))
    assert len(results) == len(after) > 0
    for got, wanted, old, precise in zip(results, after, before, wide, strict=True):
        largest = wanted.abs().max()
        # In scores of 1e15 and more, float32 shows no change of the features.
        assert largest > 1e12 or (wanted - precise).abs().max() > 1e-4 * min(largest, 100), "the oracle changed nothing"
        tolerance = 2 * (old.double() - precise).abs().max() if family.is_half else 1e-5 * largest
        assert (got.double() - wanted).abs().max() <= tolerance
    # The model itself is untouched.
    assert all(torch.equal(now, old) for now, old in zip(family.scores(run(model, inputs)), before, strict=True))


def mask_exactly(family: Family, way: str) -> None:
    """Raise AssertionError if, by default, a forgotten class remains or the retained classes change their order."""
    masked, kept = (
        family.scores(
            run(forget(built(family), FORGOTTEN, forgotten_logit=logit, **family.options(way)), family.inputs())
        )
        for logit in ("mask", "keep")
    )
    assert are_masked(masked, kept, is_probability=family.probabilities)


def are_masked(masked: Scores, kept: Scores, *, is_probability: bool) -> bool:
    """Whether no forgotten class is predicted, all have probability 0, and another one wins as with their scores kept.

    Args:
        masked: Scores of a network with the mask.
        kept: Scores of the same network without the mask.
        is_probability: Whether the scores are probabilities already.
    """
    retained = [label for label in range(CLASSES) if label not in FORGOTTEN]
    for scores, others in zip(map(columns, masked), map(columns, kept), strict=True):
        probabilities = scores if is_probability else scores.float().softmax(dim=1)
        is_predicted = torch.isin(scores.argmax(dim=1), torch.tensor(FORGOTTEN))
        if not torch.isfinite(scores).all() or is_predicted.any() or (probabilities[:, FORGOTTEN] != 0).any():
            return False
        winner = scores[:, retained].argmax(dim=1, keepdim=True)
        highest = others[:, retained].amax(dim=1, keepdim=True)
        # Of two scores that are equal up to rounding, either may win.
        if (highest - others[:, retained].gather(1, winner) > 1e-4 * others.abs().max()).any():
            return False
    return len(masked) > 0
