"""Putting something in front of the head that changes the features it sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.models.copy_and_swap import swap_module
from pour.models.head import Head, find_head
from pour.models.modes import evaluating
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead
from pour.models.tap import checked_batches, tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from pour.geometry.projector import Projector
    from pour.training.run import Run

__all__ = ["check_logit", "earlier_logit", "put_in_front", "seen_features", "set_projector"]


def put_in_front(
    model: nn.Module, added: Projector | Eraser, classes: tuple[int, ...], forgotten_logit: ForgottenLogit
) -> nn.Module:
    """Change ``model`` so that its features pass ``added`` before the head, after whatever was there already."""
    place = find_head(model).module
    together = Eraser.after(place.projector, added) if isinstance(place, ProjectedHead) else added
    return set_projector(model, together, classes, forgotten_logit)


def set_projector(
    model: nn.Module, removal: Projector | Eraser, classes: tuple[int, ...], forgotten_logit: ForgottenLogit
) -> nn.Module:
    """Change ``model`` so that its features pass ``removal`` before the head, in place of an earlier projector.

    Raises:
        UsageError: An earlier request treats the scores of its classes in another way.
    """
    head = find_head(model)
    place = head.module
    if isinstance(place, ProjectedHead):
        check_logit(model, forgotten_logit)
        classes = (*place.forgotten, *classes)
    weight = head.weight
    removal = removal.to(device=weight.device, dtype=torch.promote_types(weight.dtype, torch.float32))
    projected = ProjectedHead(head.layer, removal, forgotten=sorted(set(classes)), forgotten_logit=forgotten_logit)
    return swap_module(model, place, projected.train(place.training))


def check_logit(model: nn.Module, forgotten_logit: ForgottenLogit) -> None:
    """Raise UsageError if an earlier request treats the scores of its classes in another way."""
    earlier = earlier_logit(model)
    if earlier not in (None, forgotten_logit):
        raise UsageError(
            f"The model already forgot classes with forgotten_logit={earlier!r}; pass the same now instead of "
            f"{forgotten_logit!r}, or fold the model first."
        )


def earlier_logit(model: nn.Module) -> ForgottenLogit | None:
    """Return how an earlier request treats the scores of its classes; None if no projector has any."""
    place = find_head(model).module
    return place.forgotten_logit if isinstance(place, ProjectedHead) and place.forgotten else None


def seen_features(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """What the head sees of each batch, as rows (n, d) in float32, with one label a row; a map gives a row a place."""
    model.to(run.torch_device)
    with evaluating(model), tap_features(model, head) as tap:
        for images, labels in checked_batches(batches):
            with torch.no_grad():
                model(to_unit(images.to(run.torch_device)))
            features = tap.features.movedim(head.dim, -1).float()
            places = features.flatten(1, -2).shape[1] if features.ndim > 2 else 1
            yield features.reshape(-1, head.num_features), labels.to(features.device).repeat_interleave(places)
