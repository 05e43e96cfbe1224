"""Compare a value of the unlearned model with the interval of the retrained models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pour.errors import UsageError
from pour.metrics.catalogue import find_metric

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.auditing.measurement import Reading

__all__ = ["Verdict", "accuracy_name", "judge"]

Verdict = Literal["within its interval", "leaks more", "destroyed", "as the original", "better", "no reference"]
"""Position of a value relative to the interval of the retrained models, over images and over seeds.

- `leaks more`: more of the forgotten class remains than in a model that never saw it.
- `destroyed`: less structure remains than in such a model, on retained or on forgotten images.
- `as the original`: outside the interval on the harmful side, but no worse than the original model.
- `better`: outside the interval on the harmless side.
- `no reference`: the retrained model, or the second retrained model for a comparison with the first, is missing, or
  there are too few images for an interval.
"""


def accuracy_name(suffix: str, letter: str) -> str:
    """Return the name of the accuracy on the retained ("r") or forgotten ("f") images of a suffix."""
    return f"acc_t{letter}" if suffix == "_train" else f"acc_{letter}{suffix}"


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

    Examples:
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
        return _verdict_from_others(metric.name, suffix, above, verdict_on)
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


def _verdict_from_others(name: str, suffix: str, above: bool, verdict_on: Callable[[str], Verdict | None]) -> Verdict:
    """Return the verdict on a value outside the interval that depends on verdicts on other metrics.

    Args:
        name: Name of the metric.
        suffix: Suffix of the images, such as `_train`.
        above: Whether the value is above the interval.
        verdict_on: Returns the verdict on another metric of the same features.
    """

    def on_accuracy(side: Literal["f", "r"]) -> Verdict | None:
        """Return the verdict on the accuracy of the same images, or of the test images without such a verdict."""
        return verdict_on(accuracy_name(suffix, side)) or verdict_on(f"acc_{side}")

    if name in ("rmia_tpr", "rmia_fpr"):
        # The rates depend on the threshold of the attack. Only its balanced accuracy shows a leak.
        return "leaks more" if verdict_on("rmia_balanced_accuracy") == "leaks more" else "better"
    if name == "rus_o" and above:
        # RUS(o) rewards any destruction of the forgotten class's features.
        return "destroyed" if verdict_on(f"cka_f_o{suffix}") == "destroyed" else "better"
    if name == "rus_r" and verdict_on(f"cka_f_r{suffix}") == "within its interval":
        return _as_loss(verdict_on(f"cka_r_r{suffix}"))
    if "leaks more" in (on_accuracy("f"), verdict_on("iou_f")):
        return "leaks more"
    if name == "aus":
        return _as_loss(on_accuracy("r"))
    if name == "answers_r":
        return "destroyed"
    # The features differ from the retrained model's: a leak or damage.
    return "leaks more" if verdict_on(f"cka_f_o{suffix}") == "leaks more" else "destroyed"


def _as_loss(verdict_on_retained: Verdict | None) -> Verdict:
    return "as the original" if verdict_on_retained == "as the original" else "destroyed"
