"""Metrics of one model: accuracy, predictions, attacks, probes, norms and Neural Collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from pour.auditing.features import SIDES
from pour.auditing.measurement import Reading, combined
from pour.auditing.verdict import accuracy_name
from pour.errors import UsageError
from pour.geometry.collapse import neural_collapse
from pour.metrics.catalogue import list_metrics
from pour.metrics.intervals import Z95, wilson
from pour.metrics.membership import rmia
from pour.metrics.norms import norm_leak
from pour.metrics.predictions import retained_entropies, retained_uniformity
from pour.metrics.probes import knn_probe, linear_probe
from pour.metrics.unlearning import aus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from pour.auditing.features import Tapped, View
    from pour.metrics.probes import Probe

__all__ = ["Measurer", "aus_reading", "suffix_of"]

T = TypeVar("T")

_SUFFIXES = {"test": "", "train": "_train"}
# Number of groups of images for the interval of a Neural Collapse measure.
_GROUPS = 5
# The 97.5 % quantile of Student's t with four degrees of freedom, one less than the number of groups.
_STUDENT = 2.7764
_COLLAPSE = ("nc1", "nc2_norm_spread", "nc2_angle_std", "nc3")


@dataclass
class Measurer:
    """Measures single models. A measure that cannot be computed is absent, and a note gives the reason."""

    seed: int
    class_counts: Mapping[int, int]
    """Number of training images of each class, before any limit."""
    notes: list[str] = field(default_factory=list)
    """Reasons for absent measures."""

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Return a measure, or None and add a note with the reason."""
        try:
            return measure()
        except UsageError as error:
            note = f"{what} is absent: {error}"
            if note not in self.notes:
                self.notes.append(note)
            return None

    def answers(self, model: Tapped) -> dict[str, Reading]:
        """Return accuracies on every split, and the entropy of the answers on forgotten images."""
        readings: dict[str, Reading] = {}
        for split, output in model.splits.items():
            right = output.scores.argmax(dim=1) == output.labels
            for side, letter in SIDES.items():
                correct = right[model.mask(split, side)]
                if n := len(correct):
                    readings[accuracy_name(suffix_of(split), letter)] = Reading.of(wilson(int(correct.sum()), n), n)
        for split, suffix in _SUFFIXES.items():
            what = f"the entropy of the {model.role} model on {split} images"
            readings |= self.attempt(what, partial(self._uniformity, model, split, suffix)) or {}
        return readings | self._metrics_of_packages(model)

    def _metrics_of_packages(self, model: Tapped) -> dict[str, Reading]:
        """Return the metrics of other packages on test samples. An error in one of them becomes a note."""
        readings: dict[str, Reading] = {}
        test = model.splits["test"]
        for metric in list_metrics():
            if metric.compute is None:
                continue
            try:
                value = float(metric.compute(test.features, test.scores, test.labels, model.forgotten))
                reason = "" if math.isfinite(value) else f"its value is {value}"
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
            if reason:
                self.notes.append(f"{metric.name} of the {model.role} model is absent: {reason}.")
            else:
                readings[metric.name] = Reading(value=value, n=len(test.labels))
        return readings

    def features(self, model: Tapped, view: View) -> dict[str, Reading]:
        """Return membership attack, probes and norms, from one view of the features."""
        measures: dict[str, Callable[[Tapped, View], dict[str, Reading]]] = {
            "membership": self._membership,
            "linear probe": partial(_probe_readings, "probe_linear", linear_probe),
            "knn probe": partial(_probe_readings, "probe_knn", partial(knn_probe, seed=self.seed)),
            "norms": self._norms,
        }
        readings: dict[str, Reading] = {}
        for name, measure in measures.items():
            readings |= self.attempt(f"{name} of the {model.role} model", partial(measure, model, view)) or {}
        return readings

    def collapse(self, model: Tapped) -> tuple[dict[str, Reading], dict[str, int | float]]:
        """Return readings of Neural Collapse of the retained classes, and all of its measures on training images."""
        readings: dict[str, Reading] = {}
        everything: dict[str, int | float] = {}
        for split, suffix in _SUFFIXES.items():
            keep = model.mask(split, "retain")
            rows, labels = model.rows(split)[keep], model.labels(split)[keep]
            what = f"Neural Collapse of the {model.role} model on {split} images"
            collapse = self.attempt(what, partial(neural_collapse, rows, labels, model.weight, model.bias))
            if collapse is None:
                continue
            values = {name: value for name, value in collapse.to_dict().items() if value is not None}
            undefined = [name for name, value in values.items() if not math.isfinite(value)]
            if undefined:
                self.notes.append(f"{', '.join(undefined)} of the {model.role} model on {split} images is undefined.")
                values = {name: value for name, value in values.items() if name not in undefined}
            errors, n = _jackknife(rows, labels, model), len(rows)
            for name in (name for name in _COLLAPSE if name in values):
                reading = Reading.around(values[name], errors.get(name), n=n, within=(0.0, math.inf))
                readings[f"{name}{suffix}"] = reading
            if "nc4" in values:
                readings[f"nc4{suffix}"] = Reading.of(wilson(round(values["nc4"] * n), n), n)
            if split == "train":
                everything = values
        return readings, everything

    def _uniformity(self, model: Tapped, split: str, suffix: str) -> dict[str, Reading]:
        scores = model.splits[split].scores[model.mask(split, "forget")]
        means = retained_uniformity(scores, classes=model.forgotten)
        n = len(scores)
        error = float(retained_entropies(scores, model.forgotten).std()) / math.sqrt(n) if n > 1 else None
        span = (0.0, math.log(scores.shape[1] - len(model.forgotten)))
        return {
            f"entropy_f{suffix}": Reading.around(float(means["entropy"]), error, n=n, within=span),
            f"kl_uniform_f{suffix}": Reading.around(float(means["kl_to_uniform"]), error, n=n, within=span),
        }

    def _membership(self, model: Tapped, view: View) -> dict[str, Reading]:
        train, labels = model.rows("train", view), model.labels("train")
        rows = self._in_proportion(labels)
        members, others = (train[rows], labels[rows]), (model.rows("test", view), model.labels("test"))
        attack = rmia(*members, *others, classes=model.forgotten, seed=self.seed)
        both = attack.members + attack.others
        return {
            "rmia_balanced_accuracy": Reading.of(attack.balanced_accuracy, both),
            "rmia_auc": Reading.of(attack.auc, both),
            "rmia_tpr": Reading.of(attack.tpr, attack.members),
            "rmia_fpr": Reading.of(attack.fpr, attack.others),
        }

    def _in_proportion(self, labels: Tensor) -> Tensor:
        """Return training images with the class shares of the whole split.

        With other shares the attack would measure the shares instead of membership.
        """
        counts = torch.bincount(labels, minlength=max(self.class_counts) + 1).tolist()
        totals = {c: total for c, total in self.class_counts.items() if total}
        share = min(counts[c] / total for c, total in totals.items())
        if share == 1:
            return torch.arange(len(labels), device=labels.device)
        taken = [(labels == c).nonzero().squeeze(1)[: round(share * total)] for c, total in totals.items()]
        return torch.cat(taken).sort().values

    def _norms(self, model: Tapped, view: View) -> dict[str, Reading]:
        readings = {}
        for split, suffix in _SUFFIXES.items():
            leak = norm_leak(model.side(split, "forget", view), model.side(split, "retain", view))
            readings[f"norm_leak{suffix}"] = Reading.of(leak, len(model.labels(split)))
        return readings


def suffix_of(split: str) -> str:
    """Return the suffix of the names of a split's metrics."""
    return "" if split == "test" else f"_{split}"


def aus_reading(original: Mapping[str, Reading], model: Mapping[str, Reading], suffix: str = "") -> Reading:
    """Return AUS on the test split, or on the split of `suffix`."""
    before = original[f"acc_r{suffix}"].value
    return combined(partial(aus, before), model[f"acc_r{suffix}"], model[f"acc_f{suffix}"])


def _probe_readings(name: str, probe: Callable[..., Probe], model: Tapped, view: View) -> dict[str, Reading]:
    labels = model.labels("test")
    train = model.rows("train", view), model.labels("train")
    result = probe(*train, model.rows("test", view), labels, classes=model.forgotten)
    both = model.mask("test", "forget") | (labels == result.nearest_class)
    return {
        name: Reading.of(result.against_all, len(labels)),
        f"{name}_nearest": Reading.of(result.against_nearest, int(both.sum())),
    }


def _jackknife(rows: Tensor, labels: Tensor, model: Tapped) -> dict[str, float]:
    """Return standard errors of the Neural Collapse measures by the jackknife: each group of images is omitted once.

    A group contains every fifth image of each class. The result is empty if a class has too few images for the groups.
    The errors of few groups are uncertain, so Student's quantile replaces the normal quantile.
    """
    counts = torch.bincount(labels)
    if int(counts[counts > 0].min()) < 2 * _GROUPS:
        return {}
    order = labels.argsort(stable=True)
    group = torch.empty_like(order)
    group[order] = torch.arange(len(order), device=order.device) % _GROUPS
    parts = [
        neural_collapse(rows[group != k], labels[group != k], model.weight, model.bias).to_dict()
        for k in range(_GROUPS)
    ]
    errors = {}
    for name in _COLLAPSE:
        values = torch.tensor([part[name] for part in parts], dtype=torch.float64)
        error = _STUDENT / Z95 * math.sqrt((_GROUPS - 1) * float(values.var(correction=0)))
        if math.isfinite(error):
            errors[name] = error
    return errors
