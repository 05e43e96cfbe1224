"""The direction of POUR-A, chosen by what its projection does to the model's answers."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.models.copy_and_swap import swap_module
from pour.models.head import Head, find_head
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.projecting.direction import MOST_STRETCH, RowDirection, head_removal, stretch, with_earlier
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import to_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pour.geometry.projector import Projector

__all__ = [
    "CANDIDATES",
    "MOST_LEFT",
    "Choice",
    "choose_by_measurement",
    "projected_in_place",
    "scores_on",
    "share_answered",
    "share_changed",
]

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
    """Share of the measured forget images whose answer behind the projection is a forgotten class."""
    changed: float
    """Share of the anchors whose decision between retained classes changed, or that get a forgotten class now."""


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

    A candidate is accepted if at most 0.2 % of the forget images get a forgotten class as their answer behind its
    projection, and if no anchor changes its decision between retained classes. ``decisions`` is a candidate only if it
    is well conditioned. If none is accepted, the candidate that leaves the least of the class is returned; among
    equals, the one that changes the fewest decisions.

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
    gone = tuple(sorted({*classes, *earlier}))
    before = [scores_on(model, batch) for batch in anchors]
    found: list[Choice] = []
    problem: UsageError | None = None
    for direction in candidates:
        if direction == "weights" and len(candidates) > 1 and set(gone) > set(classes):
            # It leaves an earlier class its bias, and there are no images of that class to measure on.
            continue
        try:
            removal = _removal(head, classes, direction, earlier, alone=len(candidates) == 1)
        except UsageError as error:
            problem = error
            continue
        choice = _measured(model, head, direction, removal, gone, forget, anchors, before)
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
    gone: tuple[int, ...],
    forget: Sequence[tuple[Tensor, Tensor]],
    anchors: Sequence[Tensor],
    before: Sequence[Tensor],
) -> Choice:
    with projected_in_place(model, head, removal, gone) as projected:
        left = share_answered(projected, forget, gone)
        changed = share_changed(projected, anchors, before, gone)
    return Choice(direction, removal, left, changed)


@contextlib.contextmanager
def projected_in_place(
    model: nn.Module, head: Head, removal: Projector | Eraser, gone: tuple[int, ...]
) -> Iterator[nn.Module]:
    """Have ``removal`` in front of the linear layer of ``head`` while the block runs, all scores kept."""
    place = find_head(model).module
    removal = removal.to(head.weight.device)
    projected = ProjectedHead(head.layer, removal, forgotten=gone, forgotten_logit="keep")
    changed = swap_module(model, place, projected)
    try:
        yield changed
    finally:
        swap_module(changed, projected, place)


@torch.no_grad()
def share_answered(model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], gone: tuple[int, ...]) -> float:
    """Return the share of images, or of pixels with a label, that ``model`` answers with a class of ``gone``."""
    answered = counted = 0
    for images, labels in batches:
        answers = scores_on(model, images).argmax(dim=1)
        counts = labels >= 0
        answered += int((torch.isin(answers, torch.tensor(gone, device=answers.device)) & counts).sum())
        counted += int(counts.sum())
    return answered / max(1, counted)


@torch.no_grad()
def share_changed(
    model: nn.Module, batches: Sequence[Tensor], before: Sequence[Tensor], gone: tuple[int, ...]
) -> float:
    """Return the share of images whose decision is another one than that of the scores ``before``.

    A decision is another one if another retained class has the highest score of the retained classes, ties up to
    rounding left out, or if the answer became a class of ``gone``.
    """
    moved = count = 0
    for images, earlier in zip(batches, before, strict=True):
        scores = scores_on(model, images)
        retained = [label for label in range(scores.shape[1]) if label not in gone]
        forgotten = torch.tensor(gone, device=scores.device)
        returned = torch.isin(scores.argmax(dim=1), forgotten) & ~torch.isin(earlier.argmax(dim=1), forgotten)
        changed = _changed_decisions(earlier[:, retained], scores[:, retained]) | returned
        moved, count = moved + int(changed.sum()), count + changed.numel()
    return moved / max(1, count)


def _changed_decisions(before: Tensor, after: Tensor) -> Tensor:
    """Return where the highest of the scores (n, C, ...) is another one, ties up to rounding left out."""
    top = before.amax(dim=1)
    chosen = after.argmax(dim=1)
    range_of_scores = (top - before.amin(dim=1)).clamp(min=torch.finfo(before.dtype).tiny)
    lost = top - before.gather(1, chosen.unsqueeze(1)).squeeze(1)
    return lost > _ROUNDING * range_of_scores


def scores_on(model: nn.Module, images: Tensor) -> Tensor:
    """Return the scores of ``images`` in single precision, the model in evaluation mode."""
    with evaluating(model), torch.no_grad():
        return scores_of(model(to_unit(images))).float()
