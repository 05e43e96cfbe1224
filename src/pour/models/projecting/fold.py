"""Merge a projector into the weights next to it: a plain model again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.clip.dual_encoder import find_image_projection
from pour.models.clip.zero_shot import TextHead, ZeroShotClassifier
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.history import HistoryEntry, add_entry
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ProjectedHead, masked_score
from pour.models.state import digest
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from pour.models.clip.dual_encoder import ImageProjection

__all__ = ["fold", "is_affine"]

_ROWS_AT_ONCE = 1024
_KEEP = "keep the projected model as it is."


def fold(model: nn.Module) -> nn.Module:
    """Return a copy of a projected ``model`` without projectors: same class, same state-dict keys, same scores.

    ``W P`` becomes the weight of a head. A masked class gets a zero row with a large negative bias, a class at "zero" a
    zero row with bias 0. If the embedding of a dual encoder is projected, ``P W`` becomes the weight of its visual
    projection instead, so that the image encoder itself has forgotten. Products are computed in float64 and rounded
    once to the dtype of the weight. The history gets an entry "fold".

    Raises:
        UsageError: There is no projector. A mask needs a bias that the head does not have. A weight is computed (weight
            norm) or shared with another layer, so that it cannot be set. Or an image embedding does not end in a linear
            map (SigLIP).

    Example:
        >>> from pour.models.projecting.forget import forget
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> plain = fold(forget(model, classes=[0]))
        >>> plain.state_dict().keys() == model.state_dict().keys()
        True
    """
    start = time.perf_counter()
    model = unwrap(model)
    names = [name for name, _ in _projected(model)]
    if not names:
        raise UsageError("The model has no projector to fold; call pour.forget on it first.")
    for name, projected in _projected(model):
        if _follows_embedding(projected):
            _visual_projection(model, projected)
        else:
            _check_head(model, name, cast("ProjectedHead", projected))
    result = copy_model(model)
    # Projectors do not commute: the one that comes first in the network goes into the weights first.
    for _, projected in sorted(_projected(result), key=lambda entry: isinstance(entry[1], ProjectedHead)):
        if _follows_embedding(projected):
            _merge_into_embedding(result, projected)
        else:
            _merge_into_head(cast("ProjectedHead", projected))
        if isinstance(projected, ProjectedHead):
            _set_forgotten_scores(projected)
        inner = projected.head if isinstance(projected, ProjectedHead) else projected.layer
        result = swap_module(result, projected, inner)
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


def _projected(model: nn.Module) -> list[tuple[str, ProjectedHead | ProjectedEmbedding]]:
    modules = model.named_modules()
    return [(name, module) for name, module in modules if isinstance(module, ProjectedHead | ProjectedEmbedding)]


def _follows_embedding(projected: ProjectedHead | ProjectedEmbedding) -> bool:
    """Return whether the projector follows the visual projection of a dual encoder."""
    return isinstance(projected, ProjectedEmbedding) or isinstance(projected.head, TextHead)


def _check_head(model: nn.Module, name: str, projected: ProjectedHead) -> None:
    """Raise UsageError if the projector cannot be merged into the head."""
    layer = projected.head
    if parametrize.is_parametrized(layer):
        raise UsageError(
            f"The head {name!r} computes its weight (a parametrization such as weight norm), so nothing can be folded "
            "into it; make it plain with torch.nn.utils.parametrize.remove_parametrizations before forgetting."
        )
    if not is_affine(layer):
        raise UsageError(
            f"The head {name!r} is a {type(layer).__name__} that computes more than W z + b, so nothing can be folded "
            f"into it; {_KEEP}"
        )
    if _is_shared(model, {id(layer)}, {id(parameter) for parameter in layer.parameters(recurse=False)}):
        raise UsageError(
            f"The head {name!r} shares its weight with another layer, which folding would change too; {_KEEP}"
        )
    if layer.bias is None and isinstance(projected.projector, Eraser) and bool(projected.projector.constant.any()):
        raise UsageError(f"The head {name!r} has no bias to hold what the eraser leaves in place; {_KEEP}")
    if layer.bias is None and projected.forgotten and projected.forgotten_logit == "mask":
        raise UsageError(
            f'The head {name!r} has no bias to hold the mask; forget with forgotten_logit="keep" (or "zero") to fold.'
        )


@torch.no_grad()
def is_affine(layer: nn.Linear | nn.Conv2d) -> bool:
    """Return whether ``layer`` computes ``W z + b``, which a subclass such as a cosine classifier does not."""
    if type(layer).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    weight = layer.weight.flatten(1)
    z = torch.linspace(-1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device).unsqueeze(0)
    scores: Tensor = layer(z if isinstance(layer, nn.Linear) else z[:, :, None, None])
    expected = nn.functional.linear(z, weight, layer.bias)
    return torch.allclose(scores.flatten(1), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def _is_shared(model: nn.Module, owners: set[int], parameters: set[int]) -> bool:
    """Return whether a module other than ``owners`` has one of ``parameters``, both given by ``id``."""
    others = (module for module in model.modules() if id(module) not in owners)
    return any(id(parameter) in parameters for module in others for parameter in module.parameters(recurse=False))


def _visual_projection(model: nn.Module, projected: ProjectedHead | ProjectedEmbedding) -> ImageProjection:
    """Return the layer whose output ``projected`` projects. Raise UsageError if it cannot take the projector in."""
    place = _find_visual_projection(model, projected)
    if place is None:
        raise UsageError(
            f"The encoder behind the texts is none that pour knows, so nothing can be folded into it; {_KEEP}"
        )
    if not place.parts:
        raise UsageError(f"The projection cannot be folded into {place.name!r} because {place.why_not}; {_KEEP}")
    if not isinstance(projected.projector, Projector):
        raise UsageError("Only a projector folds into a visual projection; keep the model with its eraser as it is.")
    if any(parametrize.is_parametrized(owner) for owner, _, _ in place.parts):
        raise UsageError(
            f"The visual projection {place.name!r} computes its weight (a parametrization), so nothing can be "
            "folded into it; remove the parametrization before forgetting."
        )
    owners = {id(owner) for owner, _, _ in place.parts}
    if _is_shared(model, owners, {id(getattr(owner, name)) for owner, name, _ in place.parts}):
        raise UsageError(
            f"The visual projection {place.name!r} shares its weight with another layer, which folding would change "
            f"too; {_KEEP}"
        )
    return place


def _find_visual_projection(model: nn.Module, projected: nn.Module) -> ImageProjection | None:
    for module in model.modules():
        if isinstance(module, ZeroShotClassifier) and module.head is projected:
            return find_image_projection(module.model)
        place = find_image_projection(module)
        if place is not None and place.module is projected:
            return place
    return None


def _wide_device(tensor: Tensor) -> torch.device:
    """Return where ``tensor`` can be computed with in float64, which Apple's GPU does not have."""
    return torch.device("cpu") if tensor.device.type == "mps" else tensor.device


@torch.no_grad()
def _merge_into_embedding(model: nn.Module, projected: ProjectedHead | ProjectedEmbedding) -> None:
    """Overwrite the weight W and the bias b of the visual projection by ``P W`` and ``P b``."""
    for owner, name, dim in _visual_projection(model, projected).parts:
        tensor: Tensor = getattr(owner, name)
        device = _wide_device(tensor)
        rows = tensor.to(device, torch.float64).movedim(dim, -1)
        tensor.copy_(_in_float64(projected.projector, device)(rows).movedim(-1, dim))


@torch.no_grad()
def _merge_into_head(projected: ProjectedHead) -> None:
    """Overwrite the weight W of the head by ``W P``, and add to its bias what an eraser leaves in place."""
    weight, bias = projected.head.weight, projected.head.bias
    device = _wide_device(weight)
    removal = _in_float64(projected.projector, device)
    if isinstance(removal, Eraser) and bias is not None:
        bias += removal.offset(weight.flatten(1).to(device, torch.float64)).to(bias)
    tolerance = 8 * torch.finfo(next(projected.projector.buffers()).dtype).eps
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = weight[start : start + _ROWS_AT_ONCE]
        wide = rows.flatten(1).to(device, torch.float64)
        folded = removal.fold(wide)
        # A row inside the removed span leaves rounding noise, which a later request must not take for a direction.
        noise = torch.linalg.vector_norm(folded, dim=1) <= tolerance * torch.linalg.vector_norm(wide, dim=1)
        folded[noise] = 0
        rows.copy_(folded.view_as(rows))


def _in_float64(removal: Projector | Eraser, device: torch.device) -> Projector | Eraser:
    """Return the map in float64; the basis of a projector, which was rounded, is made orthonormal again."""
    if isinstance(removal, Projector):
        return Projector.from_directions(removal.basis.to(device, torch.float64))
    parts = (removal.replies, removal.readings, removal.constant)
    return Eraser(*(part.to(device, torch.float64) for part in parts))


@torch.no_grad()
def _set_forgotten_scores(projected: ProjectedHead) -> None:
    """Write the scores of the forgotten classes, masked or zero, into the head's own parameters."""
    if projected.forgotten_logit == "keep" or not projected.forgotten:
        return
    weight, bias = projected.head.weight, projected.head.bias
    chosen = list(projected.forgotten)
    weight[chosen] = 0
    if bias is not None:
        bias[chosen] = 0.0 if projected.forgotten_logit == "zero" else masked_score(bias.dtype)
