"""Choose the direction of POUR-A by the model's answers behind the projection."""

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
from pour.unlearning.toolkit.distillation import MOST_LEFT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pour.geometry.projector import Projector

__all__ = ["CANDIDATES", "Answers", "Choice", "choose_by_measurement"]

CANDIDATES: tuple[RowDirection, ...] = ("weights", "decisions", "scores")
"""Directions in the order in which they are tried."""
# Rounding moves a score by less than this share of the range of the scores, so it decides nothing.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Choice:
    """A direction with the map that removes it and the measurements for it."""

    direction: RowDirection
    removal: Projector | Eraser
    """Map in front of the linear layer, earlier requests included."""
    left: float
    """Share of the measured forget images whose answer behind the projection is a forgotten class."""
    changed: float
    """Share of the anchors whose decision between retained classes changed, or that now get a forgotten class."""


class Answers:
    """Answers of a network on forget images and on anchors, to be compared with its answers behind a projection.

    Args:
        model: Original network.
        classes: Indices of the classes to forget.
        forget: Batches of images and labels. Negative labels belong to void pixels.
        anchors: Batches of images; may be empty.
    """

    def __init__(
        self,
        model: nn.Module,
        classes: Collection[int],
        forget: Sequence[tuple[Tensor, Tensor]],
        anchors: Sequence[Tensor],
    ) -> None:
        self.classes = tuple(classes)
        self.forgotten = tuple(sorted({*classes, *forgotten_before(model)}))
        self.forget, self.anchors = forget, anchors
        self._before = [_scores(model, batch) for batch in anchors]

    def behind(self, removal: Projector | Eraser, model: nn.Module, head: Head) -> tuple[float, float]:
        """Return the shares `left` and `changed` of `Choice` for `model` behind `removal`."""
        with _projected_in_place(model, head, removal, self.forgotten) as projected:
            return self._left(projected), self._changed(projected)

    def _left(self, model: nn.Module) -> float:
        """Return the share of forget images, or of their labelled pixels, whose answer is a forgotten class."""
        answered = total = 0
        for images, labels in self.forget:
            counts = labels >= 0
            answered += int((self._is_forgotten(_scores(model, images)) & counts).sum())
            total += int(counts.sum())
        return answered / max(1, total)

    def _changed(self, model: nn.Module) -> float:
        """Return the share of anchors whose decision changed.

        A decision changed if another retained class has the highest score of the retained classes, ties up to rounding
        excepted, or if the answer became a forgotten class.
        """
        moved = total = 0
        for images, before in zip(self.anchors, self._before, strict=True):
            scores = _scores(model, images)
            retained = [label for label in range(scores.shape[1]) if label not in self.forgotten]
            returned = self._is_forgotten(scores) & ~self._is_forgotten(before)
            changed = _changed_decisions(before[:, retained], scores[:, retained]) | returned
            moved, total = moved + int(changed.sum()), total + changed.numel()
        return moved / max(1, total)

    def _is_forgotten(self, scores: Tensor) -> Tensor:
        return torch.isin(scores.argmax(dim=1), torch.tensor(self.forgotten, device=scores.device))


@torch.no_grad()
def choose_by_measurement(
    model: nn.Module, answers: Answers, candidates: Sequence[RowDirection] = CANDIDATES
) -> Choice:
    """Return the first candidate whose projection removes the class and changes no decision between retained classes.

    A candidate is accepted if at most 0.2 % of the forget images get a forgotten class as their answer behind its
    projection, and if no anchor changes its decision between retained classes. `decisions` is a candidate only if it
    is well conditioned. If none is accepted, the candidate with the smallest share of forget images that keep their
    class is returned. Among equal shares, the candidate that changes the fewest decisions is returned.

    Args:
        model: Classifier. Its head is replaced during the measurement and restored afterwards.
        answers: Answers of the model on the forget images and on anchors.
        candidates: Directions to try.

    Raises:
        UsageError: The head admits none of the candidates.
    """
    head = find_head(model)
    earlier = forgotten_before(model)
    measured: list[Choice] = []
    problem: UsageError | None = None
    for direction in candidates:
        if direction == "weights" and len(candidates) > 1 and set(answers.forgotten) > set(answers.classes):
            # This direction leaves an earlier class its bias, and the request has no images of that class to measure.
            continue
        try:
            removal = _removal(head, answers.classes, direction, earlier, is_only=len(candidates) == 1)
        except UsageError as error:
            problem = error
            continue
        choice = Choice(direction, removal, *answers.behind(removal, model, head))
        if choice.left <= MOST_LEFT and choice.changed == 0:
            return choice
        measured.append(choice)
    if not measured:
        raise problem or UsageError(f"The head admits none of the directions {', '.join(candidates)}.")
    return min(measured, key=lambda choice: (max(choice.left, MOST_LEFT), choice.changed))


def _removal(
    head: Head, classes: tuple[int, ...], direction: RowDirection, earlier: Collection[int], *, is_only: bool
) -> Projector | Eraser:
    """Return the map of `direction`, behind the map of an earlier request whose projector is still in place."""
    before = head.module if isinstance(head.module, ProjectedHead) else None
    # A later request must not move the scores of an earlier one off the mean, so it sets them all.
    together = with_earlier(head, classes, earlier)
    if direction == "decisions" and not is_only and stretch(head, together, earlier=earlier) > MOST_STRETCH:
        raise UsageError('direction="decisions" is not well conditioned for this head; take direction="scores".')
    removal = head_removal(head, together, direction, earlier=earlier)
    return removal if before is None else Eraser.after(before.projector, removal)


@contextlib.contextmanager
def _projected_in_place(
    model: nn.Module, head: Head, removal: Projector | Eraser, forgotten: tuple[int, ...]
) -> Iterator[nn.Module]:
    """Put `removal` in front of the linear layer of `head` while the block runs. No class is masked."""
    place = find_head(model).module
    removal = removal.to(head.weight.device)
    projected = ProjectedHead(head.layer, removal, forgotten=forgotten, forgotten_logit="keep")
    changed = swap_module(model, place, projected)
    try:
        yield changed
    finally:
        swap_module(changed, projected, place)


def _changed_decisions(before: Tensor, after: Tensor) -> Tensor:
    """Return for each sample whether the highest score changed from `before` (n, C, ...) to `after`.

    A tie up to rounding is no change.
    """
    top = before.amax(dim=1)
    chosen_class = after.argmax(dim=1)
    range_of_scores = (top - before.amin(dim=1)).clamp(min=torch.finfo(before.dtype).tiny)
    lost = top - before.gather(1, chosen_class.unsqueeze(1)).squeeze(1)
    return lost > _ROUNDING * range_of_scores


def _scores(model: nn.Module, images: Tensor) -> Tensor:
    """Return the scores of `images` in single precision, computed in evaluation mode."""
    with evaluating(model), torch.no_grad():
        return scores_of(model(to_unit(images))).float()
