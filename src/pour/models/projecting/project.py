"""Put a projector or an eraser in front of any head: a linear layer, a 1x1 convolution, or an image embedding."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.card import names_of_scores
from pour.models.clip.dual_encoder import ImageProjection
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.head import Head, find_head
from pour.models.history import HistoryEntry, add_entry
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead
from pour.models.state import digest, tensor_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

__all__ = [
    "Projected",
    "common_logit",
    "one_or_all",
    "project",
    "project_with_entry",
    "projected_layers",
    "projector_along",
]

Projected = ProjectedHead | ProjectedEmbedding
"""A layer with a projector or an eraser."""


def projected_layers(model: nn.Module) -> dict[str, Projected]:
    """Return the layers of `model` with a projector, by dotted name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Projected)}


def project(
    model: nn.Module,
    removal: Projector | Eraser,
    *,
    place: Head | ImageProjection | None = None,
    classes: tuple[int, ...] = (),
    forgotten_logit: ForgottenLogit = "mask",
    replace: bool = False,
) -> nn.Module:
    """Change `model` so that the features z pass the map P before they are scored, and return it.

    In front of a linear or 1x1-convolution head the scores become `W P z + b`. A dual encoder has no head, so its image
    embedding is projected before it is normalised. Classes and projectors of earlier requests remain.

    Args:
        model: Network, changed in place. A network that is a head itself is wrapped.
        removal: The map P.
        place: Head or image embedding; by default the head of the model.
        classes: Indices of the forgotten classes.
        forgotten_logit: Score of the forgotten classes.
        replace: Whether `removal` contains the projector of earlier requests already.

    Raises:
        UsageError: An earlier request has another `forgotten_logit`.

    Examples:
        >>> from pour.geometry.projector import Projector
        >>> model = torch.nn.Linear(3, 2)
        >>> projected = project(model, Projector(torch.eye(3)[:1]), forgotten_logit="keep")
        >>> bool((projected(torch.tensor([5.0, 0.0, 0.0])) == model.bias).all())
        True
    """
    place = find_head(model) if place is None else place
    old = place.module
    if isinstance(old, Projected) and not replace:
        removal = Eraser.after(old.projector, removal)
    parameter = next(place.layer.parameters())
    removal = removal.to(device=parameter.device, dtype=torch.promote_types(parameter.dtype, torch.float32))
    new: Projected
    if isinstance(place, ImageProjection):
        new = ProjectedEmbedding(place.layer, removal)
    else:
        if isinstance(old, ProjectedHead):
            forgotten_logit = common_logit(old, forgotten_logit) if classes else old.forgotten_logit
            classes = (*old.forgotten, *classes)
        new = ProjectedHead(place.layer, removal, forgotten=sorted({*classes}), forgotten_logit=forgotten_logit)
    return swap_module(model, old, new.train(old.training))


def common_logit(module: nn.Module, forgotten_logit: ForgottenLogit | None) -> ForgottenLogit:
    """Return the score of the forgotten classes: `forgotten_logit`, or the value of an earlier request, or "keep".

    Raises:
        UsageError: An earlier request has another value than `forgotten_logit`.
    """
    earlier = module.forgotten_logit if isinstance(module, ProjectedHead) and module.forgotten else None
    if earlier and forgotten_logit and earlier != forgotten_logit:
        problem = f"The model already forgot classes with forgotten_logit={earlier!r}"
        raise UsageError(f"{problem}; pass the same now instead of {forgotten_logit!r}, or fold the model first.")
    return forgotten_logit or earlier or "keep"


def projector_along(directions: Tensor, place: Head | ImageProjection) -> Projector:
    """Return the projector that removes `directions`. Raise UsageError if their shape does not fit `place`.

    Args:
        directions: (k, d) or (d,), of any scale.
        place: Head or image embedding with features of width d.
    """
    parameter = next(place.layer.parameters())
    if not isinstance(directions, Tensor) or directions.ndim not in (1, 2):
        raise UsageError("directions= must be a tensor of shape (k, d) or (d,).")
    if directions.shape[-1] != place.num_features:
        expected = (
            f"the head {place.name!r} takes {place.num_features} features; pass directions of that width."
            if isinstance(place, Head)
            else f"the image embedding has {place.num_features}; embed the texts with the same model."
        )
        raise UsageError(f"The directions have width {directions.shape[-1]}, but {expected}")
    return Projector.from_directions(
        directions.detach().to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))
    )


def project_with_entry(
    model: nn.Module,
    removals: Sequence[Projector | Eraser],
    places: Sequence[Head | ImageProjection],
    settings: Mapping[str, Any],
    *,
    start: float,
    classes: tuple[int, ...] = (),
    forgotten_logit: ForgottenLogit = "mask",
) -> nn.Module:
    """Return a copy of `model` with projectors in front of its heads, and with an entry in its history.

    Args:
        model: Network, which does not change.
        removals: One projector or eraser per place.
        places: Heads, or the image embedding, of the model.
        settings: Options for the entry.
        start: Time at which the request began, from `time.perf_counter`.
        classes: Indices of the forgotten classes.
        forgotten_logit: Score of the forgotten classes.
    """
    # The model is copied last, when the memory of all earlier steps is free again.
    memo: dict[int, Any] = {}
    model, places = copy_model(model, memo), copy.deepcopy(list(places), memo)
    first = places[0]
    names = names_of_scores(model, first.num_classes) if isinstance(first, Head) else None
    # Only the projectors are new, so each tensor is read once for both digests.
    contents = {name: tensor_digest(tensor) for name, tensor in model.state_dict().items()}
    digest_before = digest(model.state_dict(), computed=contents)
    result = model
    for removal, place in zip(removals, places, strict=True):
        result = project(result, removal, place=place, classes=classes, forgotten_logit=forgotten_logit)
    projected = projected_layers(result)
    ranks = [projected[place.name].projector.rank for place in places]
    add_entry(
        result,
        HistoryEntry(
            method="pour-p",
            classes=classes,
            class_names=tuple(names[index] for index in classes) if names else (),
            options={
                **settings,
                "head" if isinstance(first, Head) else "layer": one_or_all([place.name for place in places]),
                "rank": one_or_all(ranks),
            },
            digest_before=digest_before,
            digest_after=_digest_after(result, places, contents),
            seconds=time.perf_counter() - start,
        ),
    )
    return result


def one_or_all(values: list[Any]) -> Any:
    """Return the only value for one head, and the list of values for several heads."""
    return values[0] if len(values) == 1 else values


def _digest_after(model: nn.Module, places: Sequence[Head | ImageProjection], contents: Mapping[str, str]) -> str:
    """Return the digest of the projected model. Only tensors that the original did not have are read."""
    computed = dict(contents)
    for place in places:
        prefix = f"{place.name}." if place.name else ""
        inner = "head" if isinstance(place, Head) else "layer"
        moved = {f"{prefix}{inner}.{k.removeprefix(prefix)}": v for k, v in contents.items() if k.startswith(prefix)}
        # The projector of a later request has the same name as the projector of the earlier one.
        computed = {k: v for k, v in {**moved, **computed}.items() if not k.startswith(f"{prefix}projector.")}
    return digest(model.state_dict(), computed=computed)
