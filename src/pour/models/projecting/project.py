"""Put a projector or an eraser in front of any head: a linear layer, a 1x1 convolution, or an image embedding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.models.clip.dual_encoder import ImageProjection
from pour.models.copy_and_swap import swap_module
from pour.models.head import Head, find_head
from pour.models.projecting.projected_embedding import ProjectedEmbedding
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.geometry.projector import Projector

__all__ = ["Projected", "as_precise", "check_logit", "earlier_logit", "project", "projected_layers"]

Projected = ProjectedHead | ProjectedEmbedding
"""A layer with a projector or an eraser."""


def projected_layers(model: nn.Module) -> dict[str, Projected]:
    """Return the layers of ``model`` with a projector, by dotted name."""
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
    """Change ``model`` so that the features z pass the map P before they are scored, and return it.

    In front of a linear or 1x1-convolution head the scores become ``W P z + b``. A dual encoder has no head of its own:
    its image embedding is projected before it is normalised. Classes and projectors of earlier requests stay.

    Args:
        model: Network, changed in place. A network that is a head itself is wrapped.
        removal: The map P.
        place: Head or image embedding; by default the head of the model.
        classes: Indices of the forgotten classes.
        forgotten_logit: Score of the forgotten classes.
        replace: Whether ``removal`` contains the projector of earlier requests already.

    Raises:
        UsageError: An earlier request treats the scores of its classes in another way.

    Example:
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
            forgotten_logit = forgotten_logit if classes else old.forgotten_logit
            check_logit(old, forgotten_logit)
            classes = (*old.forgotten, *classes)
        new = ProjectedHead(place.layer, removal, forgotten=sorted({*classes}), forgotten_logit=forgotten_logit)
    return swap_module(model, old, new.train(old.training))


def as_precise(values: Tensor, place: Head | ImageProjection) -> Tensor:
    """Return ``values`` detached, on the device of ``place`` and in at least single precision."""
    parameter = next(place.layer.parameters())
    return values.detach().to(parameter.device, torch.promote_types(parameter.dtype, torch.float32))


def check_logit(module: nn.Module, forgotten_logit: ForgottenLogit) -> None:
    """Raise UsageError if an earlier request treats the scores of its classes in another way than now requested."""
    earlier = earlier_logit(module)
    if earlier not in (None, forgotten_logit):
        raise UsageError(
            f"The model already forgot classes with forgotten_logit={earlier!r}; pass the same now instead of "
            f"{forgotten_logit!r}, or fold the model first."
        )


def earlier_logit(module: nn.Module) -> ForgottenLogit | None:
    """Return how a head treats the scores of the classes it forgot; None for a head that forgot none."""
    return module.forgotten_logit if isinstance(module, ProjectedHead) and module.forgotten else None
