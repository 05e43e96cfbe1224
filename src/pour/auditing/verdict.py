"""What a number means beside the same number of a retrained model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.auditing.measurement import Reading

__all__ = ["Group", "Measure", "Verdict", "judge", "measure_of"]

Verdict = Literal["within its interval", "leaks more", "destroyed", "as the original", "better", "no reference"]
"""How a value stands to the retrained model's interval: that of its images and, with a second model, of both seeds.

- ``leaks more``: more of the forgotten class is left than in a model that never saw it.
- ``destroyed``: less structure than such a model has, on retained or on forgotten images.
- ``as the original``: outside on the harmful side, but no worse than the original model was before forgetting.
- ``better``: outside on the harmless side.
- ``no reference``: there is no retrained model (or, for comparisons with it, no second one) to read it against, or too
  few images for an interval.
"""
Group = Literal["accuracy", "similarity", "membership", "probes", "predictions", "norms", "collapse", "distance"]
_Outside = Literal[
    "leaks more", "destroyed", "better", "damage", "by original", "by similarity", "by attack", "by accuracy"
]


@dataclass(frozen=True)
class Measure:
    """What one metric means."""

    title: str
    group: Group
    above: _Outside
    """What a value above the retrained model's interval means.

    "damage" is destroyed unless the original was no better, "by original" a leak towards the original's value, "by
    similarity" a difference that takes its direction from CKA_f(o), "by accuracy" one that leaks where Acc_f does, and
    "by attack" one that leaks if the attack as a whole does: its two rates alone only say where its threshold lies.
    """
    below: _Outside
    """What a value below it means."""


# A probe and the entropy have a natural value for a class that was never seen, so that too little is damage as well.
_MEASURES: dict[str, Measure] = {
    "acc_r": Measure("Acc_r, retained", "accuracy", "better", "damage"),
    "acc_f": Measure("Acc_f, forgotten", "accuracy", "leaks more", "better"),
    "acc_tr": Measure("Acc_tr, retained, train", "accuracy", "better", "damage"),
    "acc_tf": Measure("Acc_tf, forgotten, train", "accuracy", "leaks more", "better"),
    "aus": Measure("AUS", "accuracy", "better", "by similarity"),
    "iou_r": Measure("IoU_r, retained", "accuracy", "better", "damage"),
    "iou_r_rest": Measure("IoU_r, forgotten pixels left out", "accuracy", "better", "damage"),
    "iou_f": Measure("IoU_f, forgotten", "accuracy", "leaks more", "better"),
    "class_iou_r": Measure("IoU, retained class", "accuracy", "better", "damage"),
    "class_iou_f": Measure("IoU, forgotten class", "accuracy", "leaks more", "better"),
    "cka_f_o": Measure("CKA_f(o), forgotten, with the original", "similarity", "leaks more", "destroyed"),
    "cka_r_o": Measure("CKA_r(o), retained, with the original", "similarity", "better", "damage"),
    "rus_o": Measure("RUS(o)", "similarity", "by similarity", "by similarity"),
    "cka_f_r": Measure("CKA_f(r), forgotten, with the retrained", "similarity", "better", "by similarity"),
    "cka_r_r": Measure("CKA_r(r), retained, with the retrained", "similarity", "better", "damage"),
    "rus_r": Measure("RUS(r)", "similarity", "better", "by similarity"),
    "rmia_tpr": Measure("rMIA, members called members", "membership", "by attack", "by attack"),
    "rmia_fpr": Measure("rMIA, others called members", "membership", "by attack", "by attack"),
    "rmia_balanced_accuracy": Measure("rMIA, balanced accuracy", "membership", "leaks more", "better"),
    "rmia_auc": Measure("rMIA, area under ROC", "membership", "leaks more", "better"),
    "probe_linear": Measure("linear probe, against all retained", "probes", "leaks more", "destroyed"),
    "probe_linear_nearest": Measure("linear probe, against the nearest", "probes", "leaks more", "destroyed"),
    "probe_knn": Measure("5-NN probe, against all retained", "probes", "leaks more", "destroyed"),
    "probe_knn_nearest": Measure("5-NN probe, against the nearest", "probes", "leaks more", "destroyed"),
    "relearn_f": Measure("Acc_f while relearning, mean", "probes", "leaks more", "better"),
    "entropy_f": Measure("entropy of retained scores, forgotten", "predictions", "by original", "by original"),
    "kl_uniform_f": Measure("KL to uniform, forgotten", "predictions", "by original", "by original"),
    "answers_r": Measure("answers unlike the retrained's, forgotten", "predictions", "by accuracy", "better"),
    "norm_leak": Measure("forgotten told by norm, area under ROC", "norms", "leaks more", "better"),
    "nc1": Measure("NC1, within / between", "collapse", "damage", "better"),
    "nc2_norm_spread": Measure("NC2, spread of norms", "collapse", "damage", "better"),
    "nc2_angle_std": Measure("NC2, spread of angles in degrees", "collapse", "damage", "better"),
    "nc3": Measure("NC3, head against means", "collapse", "damage", "better"),
    "nc4": Measure("NC4, agreement with nearest mean", "collapse", "better", "damage"),
    "discrepancy_mmd": Measure("distance, MMD", "distance", "by similarity", "better"),
    "discrepancy_energy": Measure("distance, energy", "distance", "by similarity", "better"),
    "discrepancy_sliced-wasserstein-1": Measure("distance, sliced W1", "distance", "by similarity", "better"),
}


# An attack that does no better than a coin tells nothing, however badly that on the retrained model did.
_NO_WORSE_THAN_CHANCE = ("rmia_balanced_accuracy", "rmia_auc")


def measure_of(name: str) -> Measure:
    """What the metric of that name is; a suffix says on which images ("_train", "_external").

    Example:
        >>> measure_of("cka_f_o_train").title, measure_of("acc_f_external").above
        ('CKA_f(o), forgotten, with the original, train', 'leaks more')
    """
    base = _base_of(name)
    found, suffix = _MEASURES[base], name[len(base) + 1 :]
    return replace(found, title=f"{found.title}, {suffix}") if suffix else found


def _base_of(name: str) -> str:
    """The metric's name without the suffix that says on which images."""
    base = name
    while base not in _MEASURES:
        base = base.rpartition("_")[0]
        if not base:
            raise KeyError(name)
    return base


def judge(
    name: str,
    reading: Reading,
    reference: Reading | None,
    original: Reading | None = None,
    *,
    earlier: Mapping[str, Verdict] | None = None,
) -> Verdict:
    """Read a value against the reference's interval.

    Args:
        name: the metric.
        reading: the unlearned model's value.
        reference: the retrained model's, with the interval that its images and seeds leave open.
        original: the original model's.
        earlier: verdicts on other lines of the same features, by name; for values that have no direction of their own.

    Example:
        >>> from pour.auditing.measurement import Reading
        >>> retrained = Reading(value=0.95, low=0.94, high=0.96)
        >>> [judge("probe_linear", Reading(value=v), retrained) for v in (0.955, 0.98, 0.6)]
        ['within its interval', 'leaks more', 'destroyed']
    """
    if reference is None or (reference.low is None and reference.high is None):
        return "no reference"
    low, high = reference.bounds
    if name.startswith(_NO_WORSE_THAN_CHANCE):
        high = max(high, 0.5)
    if low <= reading.value <= high:
        return "within its interval"
    above = reading.value > high
    measure = measure_of(name)
    side = measure.above if above else measure.below
    if side == "damage":
        return "as the original" if _no_worse(reading, original, above) else "destroyed"
    if side == "by original":
        toward = original is not None and (original.value > high if above else original.value < low)
        return "leaks more" if toward else "destroyed"
    if side == "by attack":
        return "leaks more" if (earlier or {}).get("rmia_balanced_accuracy") == "leaks more" else "better"
    if side == "by accuracy":
        return "leaks more" if _named(name, earlier or {}) else "destroyed"
    if side == "by similarity":
        return _by_similarity(name, above, earlier or {})
    return side


def _no_worse(reading: Reading, original: Reading | None, harm_above: bool) -> bool:
    """Whether the value is not outside the original's interval on the harmful side."""
    if original is None:
        return False
    low, high = original.bounds
    return reading.value <= high if harm_above else reading.value >= low


def _by_similarity(name: str, above: bool, earlier: Mapping[str, Verdict]) -> Verdict:
    """Whether a value that says only "different" means a leak or damage."""
    suffix = name.removeprefix(_base_of(name))
    leaks = _named(name, earlier)
    if name.startswith("aus"):
        return "leaks more" if leaks else _damage(earlier.get(_accuracy(name, "r", earlier)))
    like_original = earlier.get(f"cka_f_o{suffix}")
    if name.startswith("rus_o") and above:
        # RUS(o) rewards any destruction of the forgotten class's features.
        return "destroyed" if like_original == "destroyed" else "better"
    if name.startswith("rus_r") and earlier.get(f"cka_f_r{suffix}") == "within its interval":
        return _damage(earlier.get(f"cka_r_r{suffix}"))
    return "leaks more" if leaks or like_original == "leaks more" else "destroyed"


def _accuracy(name: str, side: Literal["f", "r"], earlier: Mapping[str, Verdict]) -> str:
    """The accuracy on the images that a metric is of; the distances have none, and the test images decide for them."""
    suffix = name.removeprefix(_base_of(name))
    own = f"acc_t{side}" if suffix == "_train" else f"acc_{side}{suffix}"
    return own if own in earlier else f"acc_{side}"


def _named(name: str, earlier: Mapping[str, Verdict]) -> bool:
    """Whether the forgotten classes are still the answer on the images that a metric is of."""
    return "leaks more" in (earlier.get(_accuracy(name, "f", earlier)), earlier.get("iou_f"))


def _damage(retained: Verdict | None) -> Verdict:
    """The verdict on retained images, where a score lies below because of them."""
    return "as the original" if retained == "as the original" else "destroyed"
