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

    @property
    def suffixes(self) -> dict[str, str]:
        """Suffix of the names of metrics by split."""
        return {name: "" if name == "test" else f"_{name}" for name in self.counts}

    def measure_answers(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        """Measure what the models answer: with one label per sample accuracies, otherwise the scores of the task."""
        audited = self.audited
        if audited.task.one_label:
            return self._accuracies(tapped)
        found = {}
        for role, model in tapped.items():
            seen = model.splits["test"]
            found[role] = score_readings(
                audited.task,
                seen.counts,
                seen.confusion,
                audited.forgotten,
                audited.classes,
                seed=self.measurer.seed,
            )
            self.book.add("scores", role, found[role])
        return found

    def _accuracies(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        readings = {role: self.measurer.answers(model) for role, model in tapped.items()}
        for role, found in readings.items():
            accuracies = {name: reading for name, reading in found.items() if name.startswith("acc_")}
            scores = {
                f"aus{suffix}": aus_reading(readings["original"], found, suffix)
                for split, suffix in self.suffixes.items()
                # A further test set may have samples of one side only.
                if split != "train" and {accuracy_name(split, "r"), accuracy_name(split, "f")} <= found.keys()
            }
            self.book.add("scores", role, {**accuracies, **scores, **found})
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
        known: dict[object, dict[str, Reading]] = {}
        for view, split, base in product(views, splits, _REFERENCES):
            for role, model in tapped.items() if base in tapped else ():
                if role == base:
                    continue
                # CKA is symmetric, and only projected models have other raw features.
                either = view if model.projected or tapped[base].projected else "features"
                key = (frozenset((role, base)), split, either)
                if key not in known:
                    known[key] = self.memory.recall(
                        dict[str, Reading],
                        f"similarity on {split}, {either}",
                        (model.source, tapped[base].source),
                        partial(similarities, model, tapped[base], split, either),
                    )
                cka, end = known[key], f"_{base[0]}{self.suffixes[split]}"
                rus = rus_reading(cka["f"], cka["r"], base)
                self.book.add(view, role, {f"cka_f{end}": cka["f"], f"cka_r{end}": cka["r"], f"rus{end}": rus})

    def measure_features(self, model: Tapped, views: Iterable[View]) -> dict[str, float]:
        """Measure probes, the membership attack, norms and Neural Collapse. Return all measures of the last one."""
        found: dict[str, Reading] = {}
        for view in views:
            # Without a projector the raw features are those that the head sees.
            if view == "features" or model.projected:
                measure = partial(self.measurer.features, model, view)
                found = self.memory.recall(dict[str, Reading], f"{view} of {model.role}", (model.source,), measure)
            self.book.add(view, model.role, found)
        readings, everything = self.memory.recall(
            tuple[dict[str, Reading], dict[str, int | float]],
            f"collapse of {model.role}",
            (model.source,),
            partial(self.measurer.collapse, model),
        )
        self.book.add("features", model.role, readings)
        return everything

    def measure_distances(self, tapped: Mapping[Role, Tapped], views: Iterable[View]) -> list[Discrepancy]:
        """Measure the distances to the retrained model. Return those of the unlearned model with their decisions."""
        decided: list[Discrepancy] = []
        known: dict[Role, dict[BoundMetric, Discrepancy]] = {}
        for view in views if "retrained" in tapped else ():
            for role in _AT_A_DISTANCE:
                if role in tapped and (view == "features" or tapped[role].projected):
                    known[role] = self._distance(tapped[role], tapped["retrained"], view)
            for metric, value in known["unlearned"].items():
                totals = {role: values[metric].total for role, values in known.items() if metric in values}
                original, floor = totals.get("original"), totals.get("retrained_second")
                decided.append(decide(value, original=original, floor=floor, epsilon=self.epsilon))
                for role, total in totals.items():
                    # No model can be too close to the retrained one, so the interval of the floor starts at 0.
                    low = 0.0 if role == "retrained_second" else None
                    reading = Reading(value=total, low=low, n=value.n)
                    self.book.add(view, role, {f"discrepancy_{metric}": reading})
        return decided

    def _distance(self, model: Tapped, retrained: Tapped, view: View) -> dict[BoundMetric, Discrepancy]:
        what = f"the distance of the {model.role} model to the retrained one"

        def measure() -> dict[BoundMetric, Discrepancy]:
            compare = partial(discrepancies, model, retrained, view, align=self.align, seed=self.measurer.seed)
            return self.measurer.attempt(what, compare) or {}

        kind = dict[BoundMetric, Discrepancy]
        return self.memory.recall(kind, f"{what}, {view}", (model.source, retrained.source), measure)
