"""Compare a value of the unlearned model with the interval of the retrained models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour.errors import UsageError
from pour.metrics.catalogue import find_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.auditing.measurement import Reading
    from pour.metrics.catalogue import Metric

__all__ = ["Verdict", "judge"]

Verdict = Literal["within its interval", "leaks more", "destroyed", "as the original", "better", "no reference"]
"""Position of a value relative to the interval of the retrained models, over images and over seeds.

- ``leaks more``: more of the forgotten class remains than in a model that never saw it.
- ``destroyed``: less structure remains than in such a model, on retained or on forgotten images.
- ``as the original``: outside on the harmful side, but no worse than the original model.
- ``better``: outside on the harmless side.
- ``no reference``: there is no retrained model, or no second one for a comparison with the first, or there are too few
  images for an interval.
"""


def judge(
    name: str,
    reading: Reading,
    reference: Reading | None,
    original: Reading | None = None,
    *,
    verdict_on: Callable[[str], Verdict | None] = lambda name: None,
) -> Verdict:
    """Return the verdict on a value.

    Args:
        name: Name of the metric, with the suffix of its images.
        reading: Value of the unlearned model.
        reference: Value and interval of the retrained models.
        original: Value of the original model.
        verdict_on: Returns the verdict on another metric of the same features, or None if it was not measured.

    Example:
        >>> from pour.auditing.measurement import Reading
        >>> retrained = Reading(value=0.95, low=0.94, high=0.96)
        >>> [judge("probe_linear", Reading(value=v), retrained) for v in (0.955, 0.98, 0.6)]
        ['within its interval', 'leaks more', 'destroyed']
    """
    match = find_metric(name)
    if match is None:
        raise UsageError(f"There is no metric called {name!r}; pour metrics lists all of them.")
    metric, suffix = match
    if reference is None or (reference.low is None and reference.high is None):
        return "no reference"
    low, high = reference.bounds
    if metric.chance is not None:
        high = max(high, metric.chance)
    if low <= reading.value <= high:
        return "within its interval"
    return _Outside(metric, suffix, reading.value, (low, high), original, verdict_on).verdict()


@dataclass(frozen=True)
class _Outside:
    """A value outside the interval of the retrained models."""

    metric: Metric
    suffix: str
    """Suffix of the images, such as ``_train``."""
    value: float
    interval: tuple[float, float]
    original: Reading | None
    verdict_on: Callable[[str], Verdict | None]

    @property
    def above(self) -> bool:
        return self.value > self.interval[1]

    def verdict(self) -> Verdict:
        """Return the verdict that the metric's side of the interval means."""
        meaning = self.metric.above if self.above else self.metric.below
        if meaning == "loss":
            return "as the original" if self._is_no_worse_than_original() else "destroyed"
        if meaning == "towards original":
            return "leaks more" if self._is_towards_original() else "destroyed"
        if meaning == "depends":
            return _DEPENDENT[self.metric.name](self)
        if meaning is None:
            return "no reference"
        return "leaks more" if meaning == "leak" else meaning

    def _is_no_worse_than_original(self) -> bool:
        if self.original is None:
            return False
        low, high = self.original.bounds
        return self.value <= high if self.above else self.value >= low

    def _is_towards_original(self) -> bool:
        if self.original is None:
            return False
        low, high = self.interval
        return self.original.value > high if self.above else self.original.value < low

    def answers_leak(self) -> bool:
        """Return whether the model still predicts the forgotten classes."""
        return "leaks more" in (self.verdict_on(self._accuracy("f")), self.verdict_on("iou_f"))

    def retained_loss(self) -> Verdict:
        """Return the verdict of a score that is low because of the retained accuracy."""
        return _as_loss(self.verdict_on(self._accuracy("r")))

    def _accuracy(self, side: Literal["f", "r"]) -> str:
        """Return the accuracy on the same images, or on the test images if the former was not measured."""
        name = f"acc_t{side}" if self.suffix == "_train" else f"acc_{side}{self.suffix}"
        return f"acc_{side}" if self.verdict_on(name) is None else name


def _as_loss(verdict_on_retained: Verdict | None) -> Verdict:
    return "as the original" if verdict_on_retained == "as the original" else "destroyed"


def _attack_rate(outside: _Outside) -> Verdict:
    # A rate alone shows only the position of the attack's threshold.
    return "leaks more" if outside.verdict_on("rmia_balanced_accuracy") == "leaks more" else "better"


def _answer_distance(outside: _Outside) -> Verdict:
    return "leaks more" if outside.answers_leak() else "destroyed"


def _aus(outside: _Outside) -> Verdict:
    return "leaks more" if outside.answers_leak() else outside.retained_loss()


def _difference(outside: _Outside) -> Verdict:
    """Return whether a difference from the retrained model is a leak or damage."""
    similar_to_original = outside.verdict_on(f"cka_f_o{outside.suffix}") == "leaks more"
    return "leaks more" if similar_to_original or outside.answers_leak() else "destroyed"


def _rus_o(outside: _Outside) -> Verdict:
    if not outside.above:
        return _difference(outside)
    # RUS(o) rewards any destruction of the forgotten class's features.
    return "destroyed" if outside.verdict_on(f"cka_f_o{outside.suffix}") == "destroyed" else "better"


def _rus_r(outside: _Outside) -> Verdict:
    if outside.verdict_on(f"cka_f_r{outside.suffix}") == "within its interval":
        return _as_loss(outside.verdict_on(f"cka_r_r{outside.suffix}"))
    return _difference(outside)


_DEPENDENT: dict[str, Callable[[_Outside], Verdict]] = {
    "aus": _aus,
    "rus_o": _rus_o,
    "cka_f_r": _difference,
    "rus_r": _rus_r,
    "rmia_tpr": _attack_rate,
    "rmia_fpr": _attack_rate,
    "answers_r": _answer_distance,
    "discrepancy_mmd": _difference,
    "discrepancy_energy": _difference,
    "discrepancy_sliced-wasserstein-1": _difference,
}
"""Rules for the metrics whose verdict depends on other verdicts."""
