"""Measure the tapped models of an audit, each alone and in pairs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product, zip_longest
from typing import TYPE_CHECKING

from pour.auditing.distance import Discrepancy, decide, discrepancies
from pour.auditing.measure import accuracy_name, aus_reading
from pour.auditing.measurement import Reading
from pour.auditing.report_lines import LineBook
from pour.auditing.resampling import score_readings
from pour.auditing.similarity import rus_reading, similarities
from pour.geometry.bound import BoundMetric
from pour.metrics.predictions import answer_distance

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pour.auditing.audited import Audited
    from pour.auditing.cache import MeasureCache
    from pour.auditing.distance import Align
    from pour.auditing.features import Role, Tapped, View
    from pour.auditing.measure import Measurer
    from pour.metrics.unlearning import Reference

__all__ = ["Inspector"]

_REFERENCES: tuple[Reference, ...] = ("original", "retrained")
# The unlearned model comes last, because its distances are compared with those of the other two.
_AT_A_DISTANCE: tuple[Role, ...] = ("original", "retrained_second", "unlearned")


@dataclass
class Inspector:
    """Measures tapped models. Each method adds its readings to ``book``."""

    audited: Audited
    counts: Mapping[str, tuple[int, int]]
    """Number of samples with a forgotten class and of the others, by split."""
    measurer: Measurer
    memory: MeasureCache
    """Measures of the reference models from earlier audits."""
    align: Align
    epsilon: float | None
    book: LineBook = field(default_factory=LineBook)
    discrepancies: list[Discrepancy] = field(default_factory=list)
    """Distances of the unlearned model to the retrained one, with their decisions."""
    collapse: dict[str, dict[str, int | float]] = field(default_factory=dict)
    """All measures of Neural Collapse on the training samples, by role."""

    @property
    def suffixes(self) -> dict[str, str]:
        """Suffix of the names of metrics by split."""
        return {name: "" if name == "test" else f"_{name}" for name in self.counts}

    def measure_answers(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        """Measure what the models answer: with one label per sample accuracies, otherwise the scores of the task."""
        audited = self.audited
        if audited.task.one_label:
            return self._accuracies(tapped)
        readings = {}
        for role, model in tapped.items():
            test, seed = model.splits["test"], self.measurer.seed
            readings[role] = score_readings(
                audited.task, test.counts, test.confusion, audited.forgotten, audited.classes, seed=seed
            )
            self.book.add("scores", role, readings[role])
        return readings

    def _accuracies(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        readings = {role: self.measurer.answers(model) for role, model in tapped.items()}
        for role, measured in readings.items():
            accuracies = {name: reading for name, reading in measured.items() if name.startswith("acc_")}
            scores = {
                f"aus{suffix}": aus_reading(readings["original"], measured, suffix)
                for split, suffix in self.suffixes.items()
                # A further test set may have samples of one side only.
                if split != "train" and {accuracy_name(split, "r"), accuracy_name(split, "f")} <= measured.keys()
            }
            self.book.add("scores", role, {**accuracies, **scores, **measured})
        for (split, suffix), role in product(self.suffixes.items(), tapped) if "retrained" in tapped else ():
            both = [model.answers(split) for model in (tapped[role], tapped["retrained"])]
            if role != "retrained" and any(both[0]):
                # A model may have scores for more classes than the data, and the other need not have as many.
                answers, reference = zip(*zip_longest(*both, fillvalue=0), strict=True)
                reading = Reading.of(answer_distance(answers, reference), sum(answers))
                # No model can be too close to the retrained one.
                reading = replace(reading, low=0.0) if role == "retrained_second" else reading
                self.book.add("scores", role, {f"answers_r{suffix}": reading})
        return readings

    def measure_similarities(self, tapped: Mapping[Role, Tapped], views: Iterable[View]) -> None:
        """Measure CKA and RUS of every model with the original (o) and the retrained model (r)."""
        # One sample on a side has no CKA.
        splits = [name for name, counts in self.counts.items() if name in ("test", "train") or min(counts) >= 2]
        similarity: dict[object, dict[str, Reading]] = {}
        for view, split, base in product(views, splits, _REFERENCES):
            for role, model in tapped.items() if base in tapped else ():
                if role == base:
                    continue
                # CKA is symmetric, and only projected models have other raw features.
                either = view if model.projected or tapped[base].projected else "features"
                key = (frozenset((role, base)), split, either)
                if key not in similarity:
                    similarity[key] = self.memory.recall(
                        dict[str, Reading],
                        f"similarity on {split}, {either}",
                        (model.source, tapped[base].source),
                        partial(similarities, model, tapped[base], split, either),
                    )
                cka, end = similarity[key], f"_{base[0]}{self.suffixes[split]}"
                rus = rus_reading(cka["f"], cka["r"], base)
                self.book.add(view, role, {f"cka_f{end}": cka["f"], f"cka_r{end}": cka["r"], f"rus{end}": rus})

    def measure_features(self, model: Tapped, views: Iterable[View]) -> None:
        """Measure probes, the membership attack, norms and Neural Collapse."""
        readings: dict[str, Reading] = {}
        for view in views:
            # Without a projector both views have the same features.
            if view == "features" or model.projected:
                measure = partial(self.measurer.features, model, view)
                readings = self.memory.recall(dict[str, Reading], f"{view} of {model.role}", (model.source,), measure)
            self.book.add(view, model.role, readings)
        collapse, self.collapse[model.role] = self.memory.recall(
            tuple[dict[str, Reading], dict[str, int | float]],
            f"collapse of {model.role}",
            (model.source,),
            partial(self.measurer.collapse, model),
        )
        self.book.add("features", model.role, collapse)

    def measure_distances(self, tapped: Mapping[Role, Tapped], views: Iterable[View]) -> None:
        """Measure the distances to the retrained model, and decide on the unlearned model."""
        distances: dict[Role, dict[BoundMetric, Discrepancy]] = {}
        for view in views if "retrained" in tapped else ():
            for role in _AT_A_DISTANCE:
                if role in tapped and (view == "features" or tapped[role].projected):
                    distances[role] = self._distance(tapped[role], tapped["retrained"], view)
            for metric, value in distances["unlearned"].items():
                totals = {role: values[metric].total for role, values in distances.items() if metric in values}
                original, floor = totals.get("original"), totals.get("retrained_second")
                self.discrepancies.append(decide(value, original=original, floor=floor, epsilon=self.epsilon))
                for role, total in totals.items():
                    # No model can be too close to the retrained one, so the interval of the floor starts at 0.
                    low = 0.0 if role == "retrained_second" else None
                    reading = Reading(value=total, low=low, n=value.n)
                    self.book.add(view, role, {f"discrepancy_{metric}": reading})

    def _distance(self, model: Tapped, retrained: Tapped, view: View) -> dict[BoundMetric, Discrepancy]:
        what = f"the distance of the {model.role} model to the retrained one"

        def measure() -> dict[BoundMetric, Discrepancy]:
            compare = partial(discrepancies, model, retrained, view, align=self.align, seed=self.measurer.seed)
            return self.measurer.attempt(what, compare) or {}

        kind = dict[BoundMetric, Discrepancy]
        return self.memory.recall(kind, f"{what}, {view}", (model.source, retrained.source), measure)
