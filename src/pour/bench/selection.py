"""Choosing one of several settings by what was seen of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["Choice", "Trial", "beyond", "choose", "relative_change"]

_FORGOTTEN = 0.002
_KEPT = 0.01
# An AUS that leaves little to gain.
_ENOUGH = 0.99


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One setting, and how it did."""

    options: dict[str, Any]
    """The options that differ from the method's defaults."""
    failed: str | None = None
    """Why there is no result: the sentence of the divergence guard."""
    weight_change: float | None = None
    """|theta' - theta| / |theta| over all trained weights."""
    forget_accuracy: float | None = None
    """On un-augmented images of the forgotten classes: those trained on (user), or held out (benchmark)."""
    retain_accuracy: float | None = None
    """On held-out images of the retained classes."""
    aus: float | None = None
    """From the two accuracies, where both are seen."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Choice:
    """The setting taken and why."""

    best: int | None
    """Its position; None where every setting failed."""
    note: str


def choose(trials: Sequence[Trial], *, original_accuracy: float | None) -> Choice:
    """Choose by AUS where both kinds of images were seen, else by the kind that was; ties go to the smaller change.

    Args:
        trials: the settings and what was seen of them.
        original_accuracy: the original's accuracy on the retained images that were seen.

    Example:
        >>> strong = Trial(options={"lr": 0.1}, weight_change=0.3, forget_accuracy=0.0)
        >>> gentle = Trial(options={"lr": 0.01}, weight_change=0.1, forget_accuracy=0.001)
        >>> choose([strong, gentle], original_accuracy=None).best
        1
    """
    ran = {index: trial for index, trial in enumerate(trials) if trial.failed is None}
    if not ran:
        return Choice(None, "every setting diverged; give a smaller learning rate to tune around.")
    change = {index: trial.weight_change or 0.0 for index, trial in ran.items()}
    scores = {index: trial.aus for index, trial in ran.items() if trial.aus is not None}
    if scores:
        best = max(scores, key=lambda index: (scores[index], -change[index]))
        return Choice(best, "the largest AUS, retained images held out from tuning.")
    forget = {index: trial.forget_accuracy for index, trial in ran.items() if trial.forget_accuracy is not None}
    retain = {index: trial.retain_accuracy for index, trial in ran.items() if trial.retain_accuracy is not None}
    if forget:
        return _least_change(forget, change)
    return _most_change(retain, change, (original_accuracy or 0.0) - _KEPT)


def beyond(trials: Sequence[Trial], rungs: Sequence[int], best: int | None) -> tuple[int, ...]:
    """The two rungs of the ladder of learning rates to try next, where the best may not have been among those tried.

    Args:
        trials: the settings and what was seen of them.
        rungs: the rung of each.
        best: which of them was chosen; None where all diverged, so that only lower rates can help.

    Returns:
        Two rungs past the edge that the best one is at; none where others enclose it, where the rung before the edge
        does as well, where the best leaves little to gain, or where accuracies on both kinds of images were not seen.

    Example:
        >>> low, high = Trial(options={}, aus=0.7), Trial(options={}, aus=0.6)
        >>> beyond([low, high], [-2, 1], 0), beyond([low, high], [-2, 1], None)
        ((-4, -3), (-4, -3))
    """
    lowest, highest = min(rungs), max(rungs)
    below = (lowest - 2, lowest - 1)
    if best is None:
        return below
    score = trials[best].aus
    if score is None or score >= _ENOUGH:
        return ()
    for edge, inward, further in ((lowest, 1, below), (highest, -1, (highest + 1, highest + 2))):
        if rungs[best] == edge:
            beside = [trial.aus for trial, rung in zip(trials, rungs, strict=True) if rung == edge + inward]
            return () if any(other is not None and other >= score for other in beside) else further
    return ()


def _least_change(forget: dict[int, float], change: dict[int, float]) -> Choice:
    unseen = "retention was not seen."
    accepted = [index for index in forget if forget[index] <= _FORGOTTEN]
    if not accepted:
        best = min(forget, key=lambda index: (forget[index], change[index]))
        reason = f"the lowest accuracy on forget images, none being at most {_FORGOTTEN:.1%}"
        return Choice(best, f"{reason}; {unseen}")
    reason = f"the smallest change of the weights with at most {_FORGOTTEN:.1%} accuracy on forget images"
    return Choice(min(accepted, key=change.__getitem__), f"{reason}; {unseen}")


def _most_change(retain: dict[int, float], change: dict[int, float], least: float) -> Choice:
    unseen = "forgetting was not seen."
    accepted = [index for index in retain if retain[index] >= least]
    if not accepted:
        best = max(retain, key=lambda index: (retain[index], change[index]))
        return Choice(best, f"the least loss on held-out retained images, all losing more than {_KEPT:.0%}; {unseen}")
    reason = f"the largest change of the weights with at most {_KEPT:.0%} lost on held-out retained images"
    return Choice(max(accepted, key=change.__getitem__), f"{reason}; {unseen}")


def relative_change(before: nn.Module, after: nn.Module) -> float:
    """|theta' - theta| / |theta| over the parameters that both models have, in float64.

    Example:
        >>> layer, twice = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        >>> twice.load_state_dict({name: 2 * value for name, value in layer.state_dict().items()})
        <All keys matched successfully>
        >>> relative_change(layer, twice)
        1.0
    """
    old = dict(before.named_parameters())
    moved = length = 0.0
    with torch.no_grad():
        for name, new in after.named_parameters():
            if name in old and old[name].shape == new.shape:
                start = old[name].double()
                moved += float((new.to(start.device).double() - start).square().sum())
                length += float(start.square().sum())
    return (moved / length) ** 0.5 if length else 0.0
