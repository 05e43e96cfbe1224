"""Merging a projector into the visual projection: an image encoder of the same kind that has forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.utils import parametrize

from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.models.clip.dual_encoder import find_image_projection
from pour.models.clip.zero_shot import TextHead, ZeroShotClassifier

if TYPE_CHECKING:
    from pour.models.clip.dual_encoder import ImageProjection
    from pour.models.projecting.projected_embedding import ProjectedEmbedding
    from pour.models.projecting.projected_head import ProjectedHead

__all__ = ["is_text_head", "merge_into_encoder", "projection_behind"]


def is_text_head(projected: ProjectedHead) -> bool:
    """Whether the projector stands between an image embedding and texts."""
    return isinstance(projected.head, TextHead)


def projection_behind(model: nn.Module, projected: ProjectedHead | ProjectedEmbedding) -> ImageProjection:
    """The visual projection whose output ``projected`` projects, checked to be one that can take the projector in.

    Raises:
        UsageError: The embedding does not end in a linear map of its own.
    """
    place = _find(model, projected)
    if place is None:
        raise UsageError(
            "The encoder behind the texts is none that pour knows, so nothing can be folded into it; keep the "
            "projected model as it is."
        )
    if not place.parts:
        raise UsageError(
            f"The projection cannot be folded into {place.name!r}: {place.why_not}. Keep the projected model as it is."
        )
    if not isinstance(projected.projector, Projector):
        raise UsageError("Only a projector folds into a visual projection; keep the model with its eraser as it is.")
    owners = {id(owner) for owner, _, _ in place.parts}
    own = {id(getattr(owner, name)) for owner, name, _ in place.parts}
    for module in model.modules():
        if id(module) in owners:
            if parametrize.is_parametrized(module):
                raise UsageError(
                    f"The visual projection {place.name!r} computes its weight (a parametrization), so nothing can be "
                    "folded into it; remove the parametrization before forgetting."
                )
        elif any(id(parameter) in own for parameter in module.parameters(recurse=False)):
            raise UsageError(
                f"The visual projection {place.name!r} shares its weight with another layer, which folding would "
                "change too; keep the projected model as it is."
            )
    return place


def _find(model: nn.Module, projected: nn.Module) -> ImageProjection | None:
    for module in model.modules():
        if isinstance(module, ZeroShotClassifier) and module.head is projected:
            return find_image_projection(module.model)
        place = find_image_projection(module)
        if place is not None and place.module is projected:
            return place
    return None


@torch.no_grad()
def merge_into_encoder(model: nn.Module, projected: ProjectedHead | ProjectedEmbedding) -> None:
    """Write ``P W`` and ``P b`` over the linear map that the embedding ends in; in float64, rounded once."""
    place = projection_behind(model, projected)
    basis = next(projected.projector.buffers())
    for owner, name, dim in place.parts:
        tensor: torch.Tensor = getattr(owner, name)
        # Apple's GPU has no float64.
        device = torch.device("cpu") if tensor.device.type == "mps" else tensor.device
        exact = Projector.from_directions(basis.to(device, torch.float64))
        rows = tensor.to(device, torch.float64).movedim(dim, -1)
        tensor.copy_(exact(rows).movedim(-1, dim))
