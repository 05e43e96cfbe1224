"""Compare a value of the unlearned model with the interval of the retrained models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour.errors import UsageError
from pour.metrics.catalogue import find_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.auditing.measurement import Reading

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
    above = reading.value > high
    meaning = metric.above if above else metric.below
    if meaning == "depends":
        return _DEPENDENT[metric.name](_Others(suffix, verdict_on), above)
    if meaning == "loss":
        return "as the original" if _is_no_worse(reading, original, above) else "destroyed"
    if meaning == "towards original":
        same_side = original is not None and (original.value > high if above else original.value < low)
        return "leaks more" if same_side else "destroyed"
    if meaning is None:
        return "no reference"
    return "leaks more" if meaning == "leak" else meaning


def _is_no_worse(reading: Reading, original: Reading | None, above: bool) -> bool:
    if original is None:
        return False
    low, high = original.bounds
    return reading.value <= high if above else reading.value >= low


@dataclass(frozen=True)
class _Others:
    """Verdicts on other metrics of the same images."""

    suffix: str
    """Suffix of the images, such as ``_train``."""
    verdict_on: Callable[[str], Verdict | None]

    def on(self, stem: str) -> Verdict | None:
        """Return the verdict on a metric of the same images."""
        return self.verdict_on(f"{stem}{self.suffix}")

    def on_accuracy(self, side: Literal["f", "r"]) -> Verdict | None:
        """Return the verdict on the accuracy of the same images, or of the test images without such a verdict."""
        name = f"acc_t{side}" if self.suffix == "_train" else f"acc_{side}{self.suffix}"
        return self.verdict_on(name) or self.verdict_on(f"acc_{side}")

    @property
    def answers_leak(self) -> bool:
        """Whether the model still predicts the forgotten classes."""
        return "leaks more" in (self.on_accuracy("f"), self.verdict_on("iou_f"))


def _attack_rate(others: _Others, above: bool) -> Verdict:
    # A rate alone shows only the position of the attack's threshold.
    return "leaks more" if others.verdict_on("rmia_balanced_accuracy") == "leaks more" else "better"


def _answer_distance(others: _Others, above: bool) -> Verdict:
    return "leaks more" if others.answers_leak else "destroyed"


def _aus(others: _Others, above: bool) -> Verdict:
    return "leaks more" if others.answers_leak else _as_loss(others.on_accuracy("r"))


def _difference(others: _Others, above: bool) -> Verdict:
    """Return whether a difference from the retrained model is a leak or damage."""
    return "leaks more" if others.on("cka_f_o") == "leaks more" or others.answers_leak else "destroyed"


def _rus_o(others: _Others, above: bool) -> Verdict:
    if not above:
        return _difference(others, above)
    # RUS(o) rewards any destruction of the forgotten class's features.
    return "destroyed" if others.on("cka_f_o") == "destroyed" else "better"


def _rus_r(others: _Others, above: bool) -> Verdict:
    if others.on("cka_f_r") == "within its interval":
        return _as_loss(others.on("cka_r_r"))
    return _difference(others, above)


def _as_loss(verdict_on_retained: Verdict | None) -> Verdict:
    return "as the original" if verdict_on_retained == "as the original" else "destroyed"


_DEPENDENT: dict[str, Callable[[_Others, bool], Verdict]] = {
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
"""Rules for the metrics whose verdict depends on verdicts on other metrics, by name.

A rule gets these verdicts, and whether the value is above the interval.
"""
