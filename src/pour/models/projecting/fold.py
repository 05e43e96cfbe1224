"""Merge a projector into the weights next to it. The result is a plain model again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.clip.dual_encoder import find_image_projection
from pour.models.clip.zero_shot import TextHead, ZeroShotClassifier
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.history import HistoryEntry, add_entry
from pour.models.linear_form import is_affine
from pour.models.projecting.project import projected_layers
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.state import digest
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.models.clip.dual_encoder import ImageProjection, WeightPart
    from pour.models.projecting.project import Projected

__all__ = ["fold"]

_ROWS_AT_ONCE = 1024
_KEEP = "keep the projected model as it is."


def fold(model: nn.Module) -> nn.Module:
    """Return a copy of a projected `model` without projectors: same class, same state-dict keys, same scores.

    `W P` becomes the weight of a head. A masked class gets a zero row with a large negative bias. A class with
    `forgotten_logit="zero"` gets a zero row with bias 0. If the embedding of a dual encoder is projected, `P W` becomes
    the weight of its visual projection instead, so that the image encoder itself has forgotten. The weight is computed
    in float64 and rounded once to its dtype. The history gets an entry "fold".

    Raises:
        UsageError: There is no projector, a mask needs a bias that the head does not have, a weight cannot be set
            because it is computed (weight norm) or shared with another layer, or the last map of an image embedding is
            not linear (SigLIP).

    Examples:
        >>> from pour.models.projecting.forget import forget
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> plain = fold(forget(model, classes=[0]))
        >>> plain.state_dict().keys() == model.state_dict().keys()
        True
    """
    start = time.perf_counter()
    model = unwrap(model)
    names = list(projected_layers(model))
    if not names:
        raise UsageError("The model has no projector to fold; call pour.forget on it first.")
    for name, projected in projected_layers(model).items():
        _check(model, name, projected)
    result = copy_model(model)
    # Projectors do not commute, so the projector of an embedding is merged before the projector of its scores.
    for name, projected in sorted(
        projected_layers(result).items(), key=lambda entry: isinstance(entry[1], ProjectedHead)
    ):
        _merge(result, name, projected)
        result = swap_module(result, projected, projected.layer)
    add_entry(
        result,
        HistoryEntry(
            method="fold",
            options={"head": names[0] if len(names) == 1 else names},
            digest_before=digest(model.state_dict()),
            digest_after=digest(result.state_dict()),
            seconds=time.perf_counter() - start,
        ),
    )
    return result


def _check(model: nn.Module, name: str, projected: Projected) -> None:
    """Raise UsageError if the projector cannot be merged."""
    layer: Any = projected.layer
    is_linear = isinstance(layer, TextHead) or (isinstance(layer, nn.Linear | nn.Conv2d) and is_affine(layer))
    if isinstance(projected, ProjectedHead) and not is_linear:
        raise UsageError(
            f"The head {name!r} is a {type(layer).__name__} that computes more than W z + b, so nothing can be folded "
            f"into it; {_KEEP}"
        )
    place, tensors = _target(model, name, projected)
    owners = [owner for owner, _, _ in tensors]
    if any(parametrize.is_parametrized(owner) or tensor not in owner._parameters for owner, tensor, _ in tensors):
        raise UsageError(
            f"The {place} computes its weight (a parametrization such as weight norm), so nothing can be folded into "
            "it; make it plain with torch.nn.utils.parametrize.remove_parametrizations, or with "
            "torch.nn.utils.remove_weight_norm, before forgetting."
        )
    parameters = {id(parameter) for owner in owners for parameter in owner.parameters(recurse=False)}
    others = [module for module in model.modules() if module not in owners]
    if any(id(parameter) in parameters for module in others for parameter in module.parameters(recurse=False)):
        raise UsageError(f"The {place} shares its weight with another layer, which folding would change too; {_KEEP}")
    if not isinstance(projected, ProjectedHead) or isinstance(projected.layer, TextHead):
        return
    projector = projected.projector
    if layer.bias is None and isinstance(projector, Eraser) and bool(projector.constant.any()):
        raise UsageError(f"The {place} has no bias for the constant part of the eraser; {_KEEP}")
    if layer.bias is None and projected.forgotten and projected.forgotten_logit == "mask":
        raise UsageError(
            f'The {place} has no bias for the mask; forget with forgotten_logit="keep" (or "zero") to fold.'
        )


def _target(model: nn.Module, name: str, projected: Projected) -> tuple[str, Sequence[WeightPart]]:
    """Return the name in error messages of the layer that absorbs the projector, and its tensors.

    Raises:
        UsageError: The projector belongs to an image embedding that has no such layer.
    """
    if isinstance(projected, ProjectedHead) and not isinstance(projected.layer, TextHead):
        return f"head {name!r}", [(projected.layer, "weight", 1)]
    embedding = _image_projection(model, projected)
    if embedding is None:
        raise UsageError(f"pour does not know the encoder behind the texts, so nothing can be folded into it; {_KEEP}")
    if not embedding.parts:
        problem = f"The projection cannot be folded into {embedding.name!r} because {embedding.why_not}"
        raise UsageError(f"{problem}; {_KEEP}")
    if not isinstance(projected.projector, Projector):
        raise UsageError("Only a projector folds into a visual projection; keep the model with its eraser as it is.")
    return f"visual projection {embedding.name!r}", embedding.parts


def _image_projection(model: nn.Module, projected: Projected) -> ImageProjection | None:
    """Return the layer whose output `projected` projects, or None for an unknown dual encoder."""
    for module in model.modules():
        if isinstance(module, ZeroShotClassifier) and module.head is projected:
            return find_image_projection(module.model)
        embedding = find_image_projection(module)
        if embedding is not None and embedding.module is projected:
            return embedding
    return None


@torch.no_grad()
def _merge(model: nn.Module, name: str, projected: Projected) -> None:
    """Overwrite the weights next to the projector, and the bias and the rows of the forgotten classes of a head."""
    _, tensors = _target(model, name, projected)
    layer: Any = projected.layer
    if isinstance(projected, ProjectedHead) and layer.bias is not None and projected.bias is not None:
        layer.bias.copy_(projected.bias)
    removal = _in_float64(projected.projector)
    tolerance = 8 * torch.finfo(next(projected.projector.buffers()).dtype).eps
    for owner, tensor_name, dim in tensors:
        tensor: Tensor = getattr(owner, tensor_name)
        vectors = torch.atleast_2d(tensor.movedim(dim, -1)).flatten(0, -2)  # type: ignore[no-untyped-call]
        # A copy of a large head in float64 would take twice its memory.
        for rows in vectors.split(_ROWS_AT_ONCE):
            wide = as_double(rows)
            merged = removal.fold(wide)
            # A row inside the removed span becomes rounding noise. A later request must not use it as a direction.
            noise = torch.linalg.vector_norm(merged, dim=1) <= tolerance * torch.linalg.vector_norm(wide, dim=1)
            merged[noise] = 0
            rows.copy_(merged)
    if isinstance(projected, ProjectedHead) and projected.forgotten_logit != "keep":
        layer.weight[list(projected.forgotten)] = 0


def _in_float64(removal: Projector | Eraser) -> Projector | Eraser:
    """Return the map in float64; the basis of a projector, which was rounded, is made orthonormal again."""
    if isinstance(removal, Projector):
        return Projector.from_directions(as_double(removal.basis))
    return Eraser(*map(as_double, (removal.replies, removal.readings, removal.constant)))
