"""POUR-P for dual encoders: a projector behind the image embedding."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.models.clip.dual_encoder import find_image_projection
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.history import HistoryEntry, add_entry
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.state import digest

__all__ = ["forget_embedding"]


def forget_embedding(model: nn.Module, directions: Tensor) -> nn.Module:
    """Return a copy of a dual encoder whose image embedding has nothing along ``directions``, before it is normalised.

    Args:
        model: A dual encoder; it is not changed. A later request adds to its projector.
        directions: (k, d) or (d,), of any scale.
    """
    start = time.perf_counter()
    place = find_image_projection(model)
    if place is None:
        raise UsageError(
            f"A {type(model).__name__} is no dual encoder that pour knows; give a CLIP or SigLIP model of "
            "transformers, a model of open_clip, or an ImageTextEncoder."
        )
    if not isinstance(directions, Tensor) or directions.ndim not in (1, 2):
        raise UsageError("directions= must be a tensor of shape (k, d) or (d,).")
    if directions.shape[-1] != place.width:
        raise UsageError(
            f"The directions have width {directions.shape[-1]}, but the image embedding has {place.width}; embed the "
            "texts with the same model."
        )
    parameter = next(model.parameters())
    dtype = torch.promote_types(parameter.dtype, torch.float32)
    projector = Projector.from_directions(directions.detach().to(parameter.device, dtype))
    if isinstance(place.module, ProjectedEmbedding):
        projector = place.module.projector.then(projector)
    result = copy_model(model)
    old = result.get_submodule(place.name)
    layer = old.layer if isinstance(old, ProjectedEmbedding) else old
    result = swap_module(result, old, ProjectedEmbedding(layer, projector).train(old.training))
    add_entry(
        result,
        HistoryEntry(
            method="pour-p",
            options={"direction": "given", "layer": place.name, "rank": projector.rank},
            digest_before=digest(model.state_dict()),
            digest_after=digest(result.state_dict()),
            seconds=time.perf_counter() - start,
        ),
    )
    return result
