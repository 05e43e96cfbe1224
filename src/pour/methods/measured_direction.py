"""The direction of POUR-A, chosen by what its projection does to the model's answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.models.direction import MOST_STRETCH, RowDirection, head_removal, stretch, with_earlier
from pour.models.head import Head, find_head
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.projected import ProjectedHead
from pour.models.surgery import swap_module
from pour.models.tap import to_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pour.geometry.projector import Projector

__all__ = ["CANDIDATES", "MOST_LEFT", "Choice", "choose_by_measurement"]

CANDIDATES: tuple[RowDirection, ...] = ("weights", "decisions", "scores")
"""Directions in the order in which they are tried."""
MOST_LEFT = 0.002
"""Largest share of the forget images, or of the class's pixels, that a projection may leave with their class."""
# Rounding moves a score by less than this share of the range of the scores, so it decides nothing.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Choice:
    """A direction with the map that removes it and what was measured for it."""

    direction: RowDirection
    removal: Projector | Eraser
    """Map in front of the linear layer, earlier requests included."""
    left: float
    """Share of the forget images that keep their class behind the projection."""
    changed: float
    """Share of the anchors on which the decision between retained classes changed."""


@torch.no_grad()
def choose_by_measurement(
    model: nn.Module,
    classes: tuple[int, ...],
    forget: Sequence[tuple[Tensor, Tensor]],
    anchors: Sequence[Tensor],
    *,
    candidates: Sequence[RowDirection] = CANDIDATES,
) -> Choice:
    """Return the first candidate whose projection removes the class and changes no decision between retained ones.

    A candidate is accepted if at most 0.2 % of the forget images keep their class behind its projection, and if no
    anchor changes its decision between retained classes. ``decisions`` is a candidate only if it is well conditioned.
    If none is accepted, the candidate that leaves the least of the class is returned; among equals, the one that
    changes the fewest decisions.

    Args:
        model: Classifier; its head is exchanged during the measurement and is in place again afterwards.
        classes: Indices of the classes to forget.
        forget: Batches of images and labels. Negative labels belong to pixels that do not count.
        anchors: Batches of images; may be empty.
        candidates: Directions to try.

    Raises:
        UsageError: The head admits none of the candidates.
    """
    head = find_head(model)
    earlier = forgotten_before(model)
    gone = {*classes, *earlier}
    retained = [label for label in range(head.num_classes) if label not in gone]
    before = [_scores(model, batch)[:, retained] for batch in anchors]
    found: list[Choice] = []
    problem: UsageError | None = None
    for direction in candidates:
        try:
            removal = _removal(head, classes, direction, earlier, alone=len(candidates) == 1)
        except UsageError as error:
            problem = error
            continue
        choice = _measured(model, head, direction, removal, classes, forget, anchors, before, retained)
        if choice.left <= MOST_LEFT and choice.changed == 0:
            return choice
        found.append(choice)
    if not found:
        raise problem or UsageError(f"The head admits none of the directions {', '.join(candidates)}.")
    return min(found, key=lambda choice: (max(choice.left, MOST_LEFT), choice.changed))


def _removal(
    head: Head, classes: tuple[int, ...], direction: RowDirection, earlier: Collection[int], *, alone: bool
) -> Projector | Eraser:
    """Return the map of ``direction``, behind that of an earlier request whose projector is still in place."""
    before = head.module if isinstance(head.module, ProjectedHead) else None
    # A later request must not move the scores of an earlier one off the mean, so it sets them all.
    together = with_earlier(head, classes, earlier)
    if direction == "decisions" and not alone and stretch(head, together, earlier=earlier) > MOST_STRETCH:
        raise UsageError('direction="decisions" is not well conditioned for this head; take direction="scores".')
    removal = head_removal(head, together, direction, earlier=earlier)
    return removal if before is None else Eraser.after(before.projector, removal)


def _measured(
    model: nn.Module,
    head: Head,
    direction: RowDirection,
    removal: Projector | Eraser,
    classes: tuple[int, ...],
    forget: Sequence[tuple[Tensor, Tensor]],
    anchors: Sequence[Tensor],
    before: Sequence[Tensor],
    retained: list[int],
) -> Choice:
    place = head.module
    projected = ProjectedHead(head.layer, removal.to(head.weight.device), forgotten=classes, forgotten_logit="keep")
    changed_model = swap_module(model, place, projected)
    try:
        kept = counted = 0
        for images, labels in forget:
            kept += int((_scores(changed_model, images).argmax(dim=1) == labels).sum())
            counted += int((labels >= 0).sum())
        decisions = moved = 0
        for images, scores in zip(anchors, before, strict=True):
            changed = _changed_decisions(scores, _scores(changed_model, images)[:, retained])
            moved += int(changed.sum())
            decisions += changed.numel()
    finally:
        swap_module(changed_model, projected, place)
    return Choice(direction, removal, kept / max(1, counted), moved / max(1, decisions))


def _changed_decisions(before: Tensor, after: Tensor) -> Tensor:
    """Return where the highest of the scores (n, C, ...) is another one, ties up to rounding left out."""
    top = before.amax(dim=1)
    chosen = after.argmax(dim=1)
    range_of_scores = (top - before.amin(dim=1)).clamp(min=torch.finfo(before.dtype).tiny)
    lost = top - before.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return lost > _ROUNDING * range_of_scores


def _scores(model: nn.Module, images: Tensor) -> Tensor:
    with evaluating(model):
        return scores_of(model(to_unit(images))).float()
