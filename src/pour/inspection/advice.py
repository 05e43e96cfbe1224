"""Recommend a method and a direction by rules that follow from measurements (docs/results/first-call.md)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pour._words import in_words, percent
from pour.errors import UsageError
from pour.inspection.inspection import Advice, Trial
from pour.models.clip.zero_shot import TextHead
from pour.models.projecting.direction import MOST_STRETCH, stretch

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pour.models.head import Head

__all__ = ["advise", "expectations"]

_SAMPLED_CLASSES = 5
# A class counts as forgotten if at most this share of it is recognised, as in docs/results/first-call.md.
_FORGOTTEN_SHARE = 0.03


def advise(
    head: Head, classes: tuple[int, ...], earlier: Collection[int], trials: Sequence[Trial], *, pixelwise: bool
) -> list[Advice]:
    """Return one method for each kind of data that may be used. The method that needs the least data is first.

    Args:
        head: Head of the model.
        classes: Classes to forget. If empty, the directions of a few classes are computed instead.
        earlier: Classes that earlier requests removed.
        trials: Projections that were measured on data.
        pixelwise: Whether labels belong to pixels.
    """
    if isinstance(head.layer, TextHead):
        return [
            Advice(
                situation="In words, without images",
                method="text-direction",
                direction="specific",
                expect="The head is a matrix of texts. pour unlearn --concept WORDS (pour.models.forget_concepts) "
                "removes the meaning of the words, and pour.fold stores the change in the image encoder.",
            )
        ]
    direction, why = _direction(head, classes, earlier)
    measured = {trial.direction: trial for trial in trials}
    return [
        Advice(
            situation="Without images",
            method="pour-p",
            direction=direction,
            expect=f"{why} The model never answers the class{_on_data(measured.get(direction))}. Nothing is trained. "
            "The encoder does not change, so its features still contain the class.",
        ),
        Advice(
            situation="With images of the class alone" + (" (scenes that show it)" if pixelwise else ""),
            method="pour-a",
            direction=None,
            expect="The encoder is trained until it forgets. The direction is chosen by measurement on these images. "
            "On 24 small networks 0.0 % of the class was left, and the other classes lost at most 0.4 points. The "
            "encoder of a deep pretrained network changes slowly: part of the class may stay in it, hidden by the "
            "projector.",
        ),
        Advice(
            situation="With retained images too",
            method="pour-a",
            direction=None,
            expect="Training keeps the features of the retained images. Without retained images it keeps the features "
            "of changed copies of the forget images. Pass retained images if the inputs are not images, or if pour-a "
            "warns.",
        ),
    ]


def expectations(
    normalisation: Mapping[str, int], trials: Sequence[Trial], earlier: Sequence[str], dtypes: Collection[str]
) -> list[str]:
    """Return sentences on further properties of the model that affect forgetting."""
    notes = []
    weights = next((trial for trial in trials if trial.direction == "weights"), None)
    if weights is not None:
        suits = "does not suit" if weights.left > _FORGOTTEN_SHARE else "can suit"
        notes.append(
            f"pour-d {suits} this network: the projection that it learns, direction weights, leaves "
            f"{percent(weights.left)} of the class."
        )
    if normalisation.get("BatchNorm"):
        notes.append(
            "Keep the statistics of BatchNorm. If they are computed again on retained images, much of the class can "
            "return after a method that uses forget images alone. Audit the model again afterwards."
        )
    if earlier:
        notes.append(f"Earlier requests removed {in_words(earlier)}; a further request includes them.")
    if dtypes and set(dtypes) != {"float32"}:
        notes.append(f"Methods train in float32 and return {in_words(sorted(dtypes))}.")
    return notes


def _direction(head: Head, classes: tuple[int, ...], earlier: Collection[int]) -> tuple[str, str]:
    """Return the direction of POUR-P, and the reason as a sentence."""
    spaced = range(0, head.num_classes, math.ceil(head.num_classes / _SAMPLED_CLASSES))
    requests = [classes] if classes else [(label,) for label in spaced if label not in earlier]
    try:
        factor = max(stretch(each, request, earlier=earlier) for each in head.each for request in requests)
    except UsageError as error:
        return "scores", f"No direction can be computed from the head ({str(error).rstrip('.')})."
    direction = "decisions" if factor <= MOST_STRETCH else "scores"
    if math.isinf(factor):
        reason = f"its rows are dependent, or {head.num_features} features are too few for {head.num_classes} classes"
        return direction, f"The direction decisions does not exist: {reason}."
    state = "well" if factor <= MOST_STRETCH else "badly"
    return direction, f"The direction decisions is {state} conditioned (factor {factor:.2g}, limit {MOST_STRETCH:g})."


def _on_data(trial: Trial | None) -> str:
    """Return the measured change of the other classes as a part of a sentence."""
    if trial is None:
        return ""
    return f", and on these data the accuracy of the other classes changes by {100 * trial.change:+.1f} points"
