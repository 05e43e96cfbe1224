"""Merging a projector into the head, or into a dual encoder's visual projection: a plain model again."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.utils import parametrize

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.clip.fold import is_text_head, merge_into_encoder, projection_behind
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.history import HistoryEntry, add_entry
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ProjectedHead, masked_score
from pour.models.state import digest
from pour.models.unwrap import unwrap

__all__ = ["fold", "is_affine"]

_ROWS_AT_ONCE = 1024


def fold(model: nn.Module) -> nn.Module:
    """Return a copy of a projected ``model`` with ``W P`` as the weight of its head: same class, same state-dict keys.

    A masked class becomes a zero row with a large negative bias, a class at "zero" a zero row with bias 0. The product
    is taken in float64 and rounded once to the head's dtype. The history gets an entry "fold".

    Where the embedding of a dual encoder was projected, ``P W`` takes the place of its visual projection instead, so
    that the image encoder itself has forgotten.

    Raises:
        UsageError: There is no projector; a mask needs a bias that the head does not have; or the head's weight is
            computed (weight norm) or shared with another layer, so that it cannot be set; or an image embedding does
            not end in a linear map (SigLIP).

    Example:
        >>> from pour.models.projecting.forget import forget
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> plain = fold(forget(model, classes=[0]))
        >>> plain.state_dict().keys() == model.state_dict().keys()
        True
    """
    start = time.perf_counter()
    model = unwrap(model)
    names = [name for name, module in model.named_modules() if isinstance(module, ProjectedHead | ProjectedEmbedding)]
    if not names:
        raise UsageError("The model has no projector to fold; call pour.forget on it first.")
    for name in names:
        _check_foldable(model, name)
    result = copy_model(model)
    # What comes first in the network goes first into the weights: projectors do not commute.
    for behind in [module for module in result.modules() if isinstance(module, ProjectedEmbedding)]:
        merge_into_encoder(result, behind)
        result = swap_module(result, behind, behind.layer)
    for projected in [module for module in result.modules() if isinstance(module, ProjectedHead)]:
        if is_text_head(projected):
            merge_into_encoder(result, projected)
            _set_forgotten(projected)
        else:
            _merge(projected)
        result = swap_module(result, projected, projected.head)
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


def _check_foldable(model: nn.Module, name: str) -> None:
    projected = model.get_submodule(name)
    if isinstance(projected, ProjectedEmbedding) or (isinstance(projected, ProjectedHead) and is_text_head(projected)):
        projection_behind(model, projected)
        return
    if not isinstance(projected, ProjectedHead):
        return
    layer = projected.head
    if parametrize.is_parametrized(layer):
        raise UsageError(
            f"The head {name!r} computes its weight (a parametrization such as weight norm), so nothing can be folded "
            "into it; make it plain with torch.nn.utils.parametrize.remove_parametrizations before forgetting."
        )
    if not is_affine(layer):
        raise UsageError(
            f"The head {name!r} is a {type(layer).__name__} that computes more than W z + b, so nothing can be folded "
            "into it; keep the projected model as it is."
        )
    if any(other is not layer and _shares(other, layer) for other in model.modules()):
        raise UsageError(
            f"The head {name!r} shares its weight with another layer, which folding would change too; "
            "keep the projected model as it is."
        )
    if layer.bias is None and isinstance(projected.projector, Eraser) and bool(projected.projector.constant.any()):
        raise UsageError(
            f"The head {name!r} has no bias to hold what the eraser leaves in place; keep the projected model as it is."
        )
    if layer.bias is None and projected.forgotten and projected.forgotten_logit == "mask":
        raise UsageError(
            f'The head {name!r} has no bias to hold the mask; forget with forgotten_logit="keep" (or "zero") to fold.'
        )


@torch.no_grad()
def is_affine(layer: nn.Linear | nn.Conv2d) -> bool:
    """Whether a subclass with a forward of its own (a cosine classifier, say) still gives ``W z + b``."""
    if type(layer).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    weight = layer.weight.flatten(1)
    z = torch.linspace(-1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device).unsqueeze(0)
    got: torch.Tensor = layer(z if isinstance(layer, nn.Linear) else z[:, :, None, None])
    expected = nn.functional.linear(z, weight, layer.bias)
    return torch.allclose(got.flatten(1), expected, rtol=1e-2, atol=1e-2 * float(expected.abs().max()))


def _shares(other: nn.Module, layer: nn.Module) -> bool:
    own = {id(parameter) for parameter in layer.parameters(recurse=False)}
    return any(id(parameter) in own for parameter in other.parameters(recurse=False))


def _exact(projector: Projector | Eraser, place: torch.device) -> Projector | Eraser:
    """The same in float64; a projector's basis, rounded before, is made orthonormal again."""
    if isinstance(projector, Projector):
        return Projector.from_directions(projector.basis.to(place, torch.float64))
    parts = (projector.replies, projector.readings, projector.constant)
    return Eraser(*(part.to(place, torch.float64) for part in parts))


@torch.no_grad()
def _merge(projected: ProjectedHead) -> None:
    """Write ``W P`` and the forgotten scores into the head's own parameters."""
    weight, bias = projected.head.weight, projected.head.bias
    # Apple's GPU has no float64.
    place = torch.device("cpu") if weight.device.type == "mps" else weight.device
    exact = _exact(projected.projector, place)
    if isinstance(exact, Eraser) and bias is not None:
        bias += exact.offset(weight.flatten(1).to(place, torch.float64)).to(bias)
    tolerance = 8 * torch.finfo(next(projected.projector.buffers()).dtype).eps
    for start in range(0, len(weight), _ROWS_AT_ONCE):
        rows = weight[start : start + _ROWS_AT_ONCE]
        wide = rows.flatten(1).to(place, torch.float64)
        folded = exact.fold(wide)
        # A row inside the removed span leaves rounding noise, which a later request must not take for a direction.
        noise = torch.linalg.vector_norm(folded, dim=1) <= tolerance * torch.linalg.vector_norm(wide, dim=1)
        folded[noise] = 0
        rows.copy_(folded.view_as(rows))
    _set_forgotten(projected)


@torch.no_grad()
def _set_forgotten(projected: ProjectedHead) -> None:
    """Write the forgotten classes' scores, masked or zero, into the head's own parameters."""
    if projected.forgotten_logit == "keep" or not projected.forgotten:
        return
    weight, bias = projected.head.weight, projected.head.bias
    chosen = list(projected.forgotten)
    weight[chosen] = 0
    if bias is not None:
        bias[chosen] = 0.0 if projected.forgotten_logit == "zero" else masked_score(bias.dtype)
