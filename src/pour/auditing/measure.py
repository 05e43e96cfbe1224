"""The metrics that look at one model alone: accuracy, predictions, attacks, probes, norms, Neural Collapse."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import torch

from pour.auditing.measurement import Reading
from pour.errors import UsageError
from pour.geometry.collapse import neural_collapse
from pour.metrics.accuracy import split_accuracy
from pour.metrics.catalogue import list_metrics
from pour.metrics.intervals import Z95, wilson
from pour.metrics.membership import rmia
from pour.metrics.norms import norm_leak
from pour.metrics.predictions import confusion_matrix, retained_entropies, retained_uniformity
from pour.metrics.probes import knn_probe, linear_probe
from pour.metrics.unlearning import aus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from pour.auditing.features import Tapped, View
    from pour.geometry.collapse import NeuralCollapse
    from pour.metrics.probes import Probe

__all__ = ["Measurer", "aus_reading"]

T = TypeVar("T")

# Groups of images left out in turn for the interval of a Neural Collapse measure.
_GROUPS = 5
# The 97.5 % quantile of Student's t with as many degrees of freedom as there are groups, less one.
_STUDENT = 2.7764
_COLLAPSE = ("nc1", "nc2_norm_spread", "nc2_angle_std", "nc3")


@dataclass
class Measurer:
    """Measures single models; what cannot be measured is left out and said in the notes."""

    seed: int
    class_counts: Mapping[int, int]
    """Images of each class in the whole training split, before any limit."""
    notes: list[str] = field(default_factory=list)
    """Why a measure is absent."""

    def attempt(self, what: str, measure: Callable[[], T]) -> T | None:
        """Measure, or note the sentence that says why it could not be done."""
        try:
            return measure()
        except UsageError as error:
            note = f"{what} is absent: {error}"
            if note not in self.notes:
                self.notes.append(note)
            return None

    def scores(self, model: Tapped) -> dict[str, Reading]:
        """Accuracies on every split, and how even the answers on forgotten images are."""
        found: dict[str, Reading] = {}
        for split, seen in model.splits.items():
            accuracy = split_accuracy(seen.scores, seen.labels, classes=model.forgotten)
            for side, letter in (("retain", "r"), ("forget", "f")):
                if side in accuracy:
                    n = int(model.mask(split, side).sum())  # type: ignore[arg-type]
                    found[_accuracy_name(split, letter)] = Reading.of(wilson(round(float(accuracy[side]) * n), n), n)
        for split, suffix in (("test", ""), ("train", "_train")):
            what = f"the entropy of the {model.role} model on {split} images"
            found |= self.attempt(what, lambda split=split, suffix=suffix: self._uniformity(model, split, suffix)) or {}  # type: ignore[misc]
        return found | self._metrics_of_packages(model)

    def _metrics_of_packages(self, model: Tapped) -> dict[str, Reading]:
        """Compute the metrics of other packages on test samples; an error in one of them is noted."""
        readings: dict[str, Reading] = {}
        test = model.splits["test"]
        for metric in list_metrics():
            if metric.compute is None:
                continue
            what = f"{metric.name} of the {model.role} model is absent"
            try:
                value = float(metric.compute(test.features, test.scores, test.labels, model.forgotten))
            except Exception as error:
                self.notes.append(f"{what}: {type(error).__name__}: {error}.")
                continue
            if math.isfinite(value):
                readings[metric.name] = Reading(value=value, n=len(test.labels))
            else:
                self.notes.append(f"{what}: its value is {value}.")
        return readings

    def called(self, model: Tapped, split: str = "test") -> list[int]:
        """How often each class is the answer on the forgotten classes' images of a split."""
        scores, labels = model.splits[split].scores, model.labels(split)
        counts = confusion_matrix(scores, labels, scores.shape[1])[list(model.forgotten)].sum(dim=0)
        answer: list[int] = counts.tolist()
        return answer

    def features(self, model: Tapped, view: View) -> dict[str, Reading]:
        """Membership attack, probes and norms, from the features that the head sees or the raw ones."""
        found: dict[str, Reading] = {}
        for measure in (self._membership, self._linear_probe, self._knn_probe, self._norms):
            what = f"{measure.__name__.strip('_').replace('_', ' ')} of the {model.role} model"
            found |= self.attempt(what, lambda measure=measure: measure(model, view)) or {}  # type: ignore[misc]
        return found

    def collapse(self, model: Tapped) -> tuple[dict[str, Reading], dict[str, float]]:
        """Neural Collapse of the retained classes: readings of both splits, and all measures on training images."""
        found: dict[str, Reading] = {}
        everything: dict[str, float] = {}
        for split, suffix in (("test", ""), ("train", "_train")):
            keep = model.mask(split, "retain")
            rows, labels = model.rows(split)[keep], model.labels(split)[keep]

            def measured(rows: Tensor = rows, labels: Tensor = labels) -> NeuralCollapse:
                return neural_collapse(rows, labels, model.weight, model.bias)

            what = f"Neural Collapse of the {model.role} model on {split} images"
            whole = self.attempt(what, measured)
            if whole is None:
                continue
            values = {name: value for name, value in whole.to_dict().items() if value is not None}
            undefined = [name for name, value in values.items() if not math.isfinite(value)]
            if undefined:
                self.notes.append(f"{', '.join(undefined)} of the {model.role} model on {split} images is undefined.")
            values = {name: value for name, value in values.items() if name not in undefined}
            errors = _jackknife(rows, labels, model)
            for name in _COLLAPSE:
                if name in values:
                    found[f"{name}{suffix}"] = Reading.around(
                        values[name], errors.get(name), n=len(rows), within=(0.0, math.inf)
                    )
            if "nc4" in values:
                agreed = round(values["nc4"] * len(rows))
                found[f"nc4{suffix}"] = Reading.of(wilson(agreed, len(rows)), len(rows))
            if split == "train":
                everything = values
        return found, everything

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
        attack = rmia(
            train[rows],
            labels[rows],
            model.rows("test", view),
            model.labels("test"),
            classes=model.forgotten,
            seed=self.seed,
        )
        both = attack.members + attack.others
        return {
            # First what the verdict on the two rates depends on.
            "rmia_balanced_accuracy": Reading.of(attack.balanced_accuracy, both),
            "rmia_auc": Reading.of(attack.auc, both),
            "rmia_tpr": Reading.of(attack.tpr, attack.members),
            "rmia_fpr": Reading.of(attack.fpr, attack.others),
        }

    def _in_proportion(self, labels: Tensor) -> Tensor:
        """Training images in the whole split's shares of classes; the attack would take other shares for membership."""
        counts = torch.bincount(labels, minlength=max(self.class_counts) + 1).tolist()
        share = min(counts[c] / total for c, total in self.class_counts.items())
        if share == 1:
            return torch.arange(len(labels), device=labels.device)
        taken = [(labels == c).nonzero().squeeze(1)[: round(share * total)] for c, total in self.class_counts.items()]
        return torch.cat(taken).sort().values

    def _linear_probe(self, model: Tapped, view: View) -> dict[str, Reading]:
        probe = linear_probe(*_train_and_test(model, view), classes=model.forgotten)
        return _probe_readings("probe_linear", probe, model)

    def _knn_probe(self, model: Tapped, view: View) -> dict[str, Reading]:
        probe = knn_probe(*_train_and_test(model, view), classes=model.forgotten, seed=self.seed)
        return _probe_readings("probe_knn", probe, model)

    def _norms(self, model: Tapped, view: View) -> dict[str, Reading]:
        found = {}
        for split, suffix in (("test", ""), ("train", "_train")):
            leak = norm_leak(model.side(split, "forget", view), model.side(split, "retain", view)).leak
            found[f"norm_leak{suffix}"] = Reading.of(leak, len(model.labels(split)))
        return found


def aus_reading(original: Mapping[str, Reading], model: Mapping[str, Reading], suffix: str = "") -> Reading:
    """AUS on the test split or that of ``suffix``; the errors of its accuracies, on separate images, add in squares."""
    before, retain, forget = original[f"acc_r{suffix}"].value, model[f"acc_r{suffix}"], model[f"acc_f{suffix}"]
    value = aus(before, retain.value, forget.value)
    ends_r = [aus(before, end, forget.value) for end in retain.bounds]
    ends_f = [aus(before, retain.value, end) for end in forget.bounds]
    below = math.hypot(value - ends_r[0], value - ends_f[1])
    above = math.hypot(ends_r[1] - value, ends_f[0] - value)
    return Reading(value=value, low=value - below, high=value + above, n=retain.n)


def _probe_readings(name: str, probe: Probe, model: Tapped) -> dict[str, Reading]:
    labels = model.labels("test")
    both = model.mask("test", "forget") | (labels == probe.nearest_class)
    return {
        name: Reading.of(probe.against_all, len(labels)),
        f"{name}_nearest": Reading.of(probe.against_nearest, int(both.sum())),
    }


def _accuracy_name(split: str, letter: str) -> str:
    if split == "test":
        return f"acc_{letter}"
    return f"acc_t{letter}" if split == "train" else f"acc_{letter}_{split}"


def _train_and_test(model: Tapped, view: View) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return model.rows("train", view), model.labels("train"), model.rows("test", view), model.labels("test")


def _jackknife(rows: Tensor, labels: Tensor, model: Tapped) -> dict[str, float]:
    """Standard errors of the Neural Collapse measures, by leaving out one group of images after another.

    Groups take every fifth image of each class; empty where a class has too few images to spare a group. So few groups
    leave the errors themselves uncertain: they are as much wider as Student's quantile for them is than the normal one.
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
