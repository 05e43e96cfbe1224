"""Choose one of several option settings by the accuracies measured for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from pour._records import Option, record
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["Choice", "Rule", "Trial", "TuningResult", "beyond", "choose", "relative_change"]

Rule = Literal["user", "benchmark"]
"""`user` chooses by the data that the method may read, `benchmark` by a tenth of all training samples, held out."""
# Largest accuracy on forget samples at which a class counts as forgotten.
_FORGOTTEN = 0.002
# Largest loss of accuracy on held-out retained samples.
_KEPT = 0.01
# AUS from which better settings are not searched.
_ENOUGH = 0.99


@record()
class Trial:
    """One setting and its measurements."""

    options: dict[str, Option]
    """Options that differ from the method's defaults."""
    failed: str | None = None
    """Message of the divergence guard; None for a trial with a result."""
    weight_change: float | None = None
    """|theta' - theta| / |theta| over all trained weights."""
    forget_accuracy: float | None = None
    """Accuracy on forget samples without augmentation: those trained on (user), or held out (benchmark)."""
    retain_accuracy: float | None = None
    """Accuracy on held-out retained samples."""
    aus: float | None = None
    """AUS of the two accuracies, if both are measured."""
    seconds: float = 0.0


@record()
class TuningResult:
    """The trials of a method and the chosen one, as `result.json` contains them."""

    method: str
    rule: Rule
    seed: int
    dataset: str | None = None
    architecture: str | None = None
    """Architecture recorded in the model, or None."""
    forgotten: tuple[int, ...] = ()
    """Classes that the trials forgot."""
    trials: tuple[Trial, ...]
    best: int | None
    """Index of the chosen trial in `trials`, or None if all failed."""
    note: str
    """Reason for the choice."""

    def __post_init__(self) -> None:
        if self.best is not None and not 0 <= self.best < len(self.trials):
            raise UsageError(f"best is {self.best}, but there are {len(self.trials)} trials.")

    @property
    def options(self) -> dict[str, Any]:
        """Options of the chosen trial, for `pour.unlearn`."""
        if self.best is None:
            raise UsageError(f"No setting of {self.method} can be chosen: {self.note}")
        return self.trials[self.best].options


@dataclass(frozen=True)
class Choice:
    """The chosen setting and the reason."""

    best: int | None
    """Index of the trial, or None if every setting failed."""
    note: str


def choose(trials: Sequence[Trial], *, original_accuracy: float | None) -> Choice:
    """Choose by AUS if both accuracies were measured, otherwise by the measured one; a tie takes the smaller change.

    Args:
        trials: Settings with their measurements.
        original_accuracy: Accuracy of the original on the same retained samples.

    Examples:
        >>> strong = Trial(options={"lr": 0.1}, weight_change=0.3, forget_accuracy=0.0)
        >>> gentle = Trial(options={"lr": 0.01}, weight_change=0.1, forget_accuracy=0.001)
        >>> choose([strong, gentle], original_accuracy=None).best
        1
    """
    finished = [index for index, trial in enumerate(trials) if trial.failed is None]
    if not finished:
        return Choice(None, "every setting diverged; pass a smaller learning rate as the start of tuning.")
    change = {index: trials[index].weight_change or 0.0 for index in finished}
    scores, forget, retain = (
        {index: value for index in finished if (value := getattr(trials[index], name)) is not None}
        for name in ("aus", "forget_accuracy", "retain_accuracy")
    )
    if scores:
        best = max(scores, key=lambda index: (scores[index], -change[index]))
        return Choice(best, "the largest AUS, retained images held out from tuning.")
    if forget:
        accepted = [index for index in forget if forget[index] <= _FORGOTTEN]
        best = min(accepted or forget, key=lambda index: (0.0 if accepted else forget[index], change[index]))
        reason = f"the lowest accuracy on forget images, none being at most {_FORGOTTEN:.1%}"
        if accepted:
            reason = f"the smallest change of the weights with at most {_FORGOTTEN:.1%} accuracy on forget images"
        return Choice(best, f"{reason}; retention was not seen.")
    least = (original_accuracy or 0.0) - _KEPT
    accepted = [index for index in retain if retain[index] >= least]
    best = max(accepted or retain, key=lambda index: (0.0 if accepted else retain[index], change[index]))
    reason = f"the least loss on held-out retained images, all losing more than {_KEPT:.0%}"
    if accepted:
        reason = f"the largest change of the weights with at most {_KEPT:.0%} lost on held-out retained images"
    return Choice(best, f"{reason}; forgetting was not seen.")


def beyond(trials: Sequence[Trial], rungs: Sequence[int], best: int | None) -> tuple[int, ...]:
    """Return the two rungs of the ladder of learning rates to try next, if the best rate may be beyond the tried ones.

    Args:
        trials: Settings with their measurements.
        rungs: Rung of each trial.
        best: Index of the chosen trial; None if all diverged, so that only lower rates can help.

    Returns:
        Two rungs past the edge if the best trial is at the edge. Nothing if the next rung inward is as good, if AUS is
        near 1 or was not measured.

    Examples:
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
            neighbours = [trial.aus for trial, rung in zip(trials, rungs, strict=True) if rung == edge + inward]
            return () if any(other is not None and other >= score for other in neighbours) else further
    return ()


def relative_change(before: nn.Module, after: nn.Module) -> float:
    """Return |theta' - theta| / |theta| over the parameters that both models have, in float64.

    Examples:
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
