"""Run the steps of an audit in their order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product, zip_longest
from typing import TYPE_CHECKING

import torch

from pour._progress import ProgressBar
from pour.auditing.cache import MeasureCache
from pour.auditing.distance import Discrepancy, decide, discrepancies
from pour.auditing.layers import LayerMap, layer_maps
from pour.auditing.measure import Measurer, aus_reading, suffix_of
from pour.auditing.measurement import Reading
from pour.auditing.pictures import Subject, compute_pictures
from pour.auditing.processes import is_first_process
from pour.auditing.relearning import RelearningCurve, relearn
from pour.auditing.report import AuditedData, AuditedModel, AuditReport
from pour.auditing.report_lines import LineBook
from pour.auditing.resampling import score_readings
from pour.auditing.shared_encoders import same_encoder
from pour.auditing.similarity import rus_reading, similarities
from pour.auditing.tapper import Tapper
from pour.auditing.verdict import accuracy_name
from pour.data.samples import is_indexed
from pour.errors import DivergenceError
from pour.geometry.bound import BoundMetric
from pour.metrics.predictions import answer_distance
from pour.models.card import architecture
from pour.models.history import forgotten_before, history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch import nn

    from pour.auditing.distance import Align
    from pour.auditing.features import Role, Seen, Side, Tapped, View
    from pour.auditing.relearning import Relearning
    from pour.data.samples import Batches, IndexedSamples
    from pour.metrics.unlearning import Reference

__all__ = ["Auditor"]

_REFERENCES: tuple[Reference, ...] = ("original", "retrained")
# The unlearned model comes last, because its distances are compared with those of the other two.
_AT_A_DISTANCE: tuple[Role, ...] = ("original", "retrained_second", "unlearned")
_FROZEN = (
    "the retrained encoder is the original one, as with a frozen backbone, so representations are not compared with "
    "it: CKA(r), RUS(r) and the distances to the retrained model are left out"
)


@dataclass(kw_only=True)
class Auditor(Tapper):
    """Runs the models, measures them, and attacks them. Each step adds its readings to `book`."""

    models: Mapping[Role, nn.Module]
    limit: int | None
    relearning: Relearning | None
    """Options of the relearn attack, or None without the attack."""
    layers: bool
    pictures: bool
    align: Align
    epsilon: float | None
    book: LineBook = field(default_factory=LineBook)
    discrepancies: list[Discrepancy] = field(default_factory=list)
    """Distances of the unlearned model to the retrained one, with their decisions."""
    collapse: dict[str, dict[str, int | float]] = field(default_factory=dict)
    """All measures of Neural Collapse on the training samples, by role."""

    def report(self, *, progress: bool) -> AuditReport:
        """Return the report, with a progress bar if `progress`."""
        samples = sum(_length(part) for part in self.audited.samples.values())
        # For the progress bar: each measurement counts as a tenth of the samples.
        self._weight = max(1, samples // 10)
        self._done, self._total = 0, len(self.models) * (samples + self._weight * (3 + (self.relearning is not None)))
        self.advance = self._advance
        with ProgressBar(self._total, "audit", enabled=progress) as self._bar:
            tapped = self.tap_all(self.models)
            self._prepare(tapped["unlearned"])
            self._measure(tapped)
            curves, maps = tuple(self._relearn()), tuple(self._layer_maps())
        report = AuditReport(
            data=AuditedData(
                name=self.audited.name,
                classes=self.audited.classes,
                # Sorted, because the same request in another order has the same data.
                forgotten=tuple(sorted(self.audited.forgotten)),
                counts=self.counts,
                unit=self.audited.task.unit,
            ),
            models={role: self._described(role, tapped[role]) for role in self.models},
            settings={
                "seed": self.run.seed,
                "limit": self.limit,
                "precision": self.run.precision,
                "device": self.run.torch_device.type,
                "align": self.align,
            },
            lines=self.book.lines(),
            discrepancies=tuple(self.discrepancies),
            collapse=self.collapse,
            answers={role: tuple(model.answers()) for role, model in tapped.items()},
            layers=maps,
            relearning=curves,
            notes=tuple(self.notes),
        )
        test_outputs: dict[str, Seen] = {role: model.splits["test"] for role, model in tapped.items()}
        return self._pictured(report.keep(test_outputs)).keep(test_outputs)

    def _pictured(self, report: AuditReport) -> AuditReport:
        """Return the report with its pictures, if they are requested."""
        if not self.pictures or not is_first_process():
            return report
        subject = Subject(
            models={role: model for role, model in self.models.items() if role != "retrained_second"},
            reports={"unlearned": report},
            samples=self.audited.samples["test"],
            run=self.run,
            head=self.heads["original"],
        )
        return replace(report, pictures=compute_pictures(self.audited.task.name, subject))

    def _advance(self, count: int, note: str) -> None:
        self._done += count
        self._bar.update(min(self._done, self._total), note=note)

    def _prepare(self, tapped: Tapped) -> None:
        """Count the samples, and set the measures that need these counts. A loader is counted after its pass."""
        self.counts = {
            name: self.audited.side_counts(samples) if is_indexed(samples) else tapped.side_counts(name)
            for name, samples in self.audited.samples.items()
        }
        for name, counts in self.counts.items():
            self.audited.check_sides(name, counts)
        class_counts = self.audited.class_counts
        if not class_counts and "train" in self.counts:
            class_counts = dict(enumerate(torch.bincount(tapped.labels("train")).tolist()))
        settings = [self.audited.forgotten, sorted(class_counts.items()), self.run.seed, self.align]
        self.measurer = Measurer(seed=self.run.seed, class_counts=class_counts, notes=self.notes)
        self.memory = MeasureCache(self.cache, json.dumps(settings), self.notes)

    def _measure(self, tapped: Mapping[Role, Tapped]) -> None:
        """Measure the models, each alone and in pairs."""
        answers = self._measure_answers(tapped)
        compared = tapped
        if "retrained" in tapped and same_encoder(
            self.models["original"], self.models["retrained"], heads=(self.heads["original"], self.heads["retrained"])
        ):
            # A reference with the original's encoder has the original's features, so they are not a reference.
            compared = {role: model for role, model in tapped.items() if not role.startswith("retrained")}
            self.notes.append(_FROZEN)
        self.notes.extend(self._doubts(answers))
        views: tuple[View, ...] = ("features", "raw") if tapped["unlearned"].projected else ("features",)
        self._measure_similarities(compared, views)
        if not self.audited.task.one_label:
            self.notes.append(_rows_note(tapped["unlearned"]))
            return
        for role, model in compared.items():
            self._measure_features(model, views)
            self.advance(2 * self._weight, f"measured the {role} model")
        self._measure_distances(compared, views)
        self.advance(len(self.models) * self._weight, "measured distances")

    @property
    def _suffixes(self) -> dict[str, str]:
        """Suffix of the names of metrics by split."""
        return {name: suffix_of(name) for name in self.counts}

    def _measure_answers(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        """Measure the answers of the models: accuracies if a sample has one label, otherwise the scores of the task."""
        if self.audited.task.one_label:
            return self._accuracies(tapped)
        readings = {
            role: score_readings(self.audited, model.splits["test"], self.run.seed) for role, model in tapped.items()
        }
        for role, scores in readings.items():
            self.book.add("scores", role, scores)
        return readings

    def _accuracies(self, tapped: Mapping[Role, Tapped]) -> dict[Role, dict[str, Reading]]:
        readings = {role: self.measurer.answers(model) for role, model in tapped.items()}
        for role, measured in readings.items():
            accuracies = {name: reading for name, reading in measured.items() if name.startswith("acc_")}
            scores = {
                f"aus{suffix}": aus_reading(readings["original"], measured, suffix)
                for split, suffix in self._suffixes.items()
                # A further test set may have only forgotten or only retained samples.
                if split != "train" and {accuracy_name(suffix, "r"), accuracy_name(suffix, "f")} <= measured.keys()
            }
            self.book.add("scores", role, {**accuracies, **scores, **measured})
        for (split, suffix), role in product(self._suffixes.items(), tapped) if "retrained" in tapped else ():
            both = [model.answers(split) for model in (tapped[role], tapped["retrained"])]
            if role != "retrained" and any(both[0]):
                # Two models can have different numbers of scores, so the shorter list is filled with zeros.
                answers, reference = zip(*zip_longest(*both, fillvalue=0), strict=True)
                reading = Reading.of(answer_distance(answers, reference), sum(answers))
                # No model can be too close to the retrained one.
                reading = replace(reading, low=0.0) if role == "retrained_second" else reading
                self.book.add("scores", role, {f"answers_r{suffix}": reading})
        return readings

    def _measure_similarities(self, tapped: Mapping[Role, Tapped], views: Iterable[View]) -> None:
        """Measure CKA and RUS of every model with the original (o) and the retrained model (r)."""
        # CKA needs at least two samples on each side.
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
                cka, end = similarity[key], f"_{base[0]}{self._suffixes[split]}"
                rus = rus_reading(cka["f"], cka["r"], base)
                self.book.add(view, role, {f"cka_f{end}": cka["f"], f"cka_r{end}": cka["r"], f"rus{end}": rus})

    def _measure_features(self, model: Tapped, views: Iterable[View]) -> None:
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

    def _measure_distances(self, tapped: Mapping[Role, Tapped], views: Iterable[View]) -> None:
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
            compare = partial(discrepancies, model, retrained, view, align=self.align, seed=self.run.seed)
            return self.measurer.attempt(what, compare) or {}

        kind = dict[BoundMetric, Discrepancy]
        return self.memory.recall(kind, f"{what}, {view}", (model.source, retrained.source), measure)

    def _doubts(self, readings: Mapping[Role, Mapping[str, Reading]]) -> Iterator[str]:
        """Yield sentences on signs that a model was passed in the wrong role."""
        for role, scores in readings.items():
            accuracy = scores["acc_tf"].value if "acc_tf" in scores else 0.0
            if role.startswith("retrained") and accuracy > 1 / len(self.audited.classes):
                yield (
                    f"the {role} model recognises {accuracy:.1%} of the forgotten training images, so it seems to have "
                    "been trained on them, and its verdicts have no meaning"
                )
        recorded, forgotten = forgotten_before(self.models["unlearned"]), set(self.audited.forgotten)
        missing, further = forgotten - recorded, recorded - forgotten
        if recorded and missing:
            yield f"the unlearned model's history has no request to forget {self._names(missing)}"
        if further:
            yield (
                f"the unlearned model was made to forget {self._names(further)} as well, whose images count as "
                "retained; audit all of its classes together"
            )

    def _names(self, classes: Iterable[int]) -> str:
        names = dict(enumerate(self.audited.classes))
        return ", ".join(names.get(label, str(label)) for label in sorted(classes))

    def _described(self, role: Role, tapped: Tapped) -> AuditedModel:
        model = self.models[role]
        described, entries = architecture(model), tuple(history(model))
        return AuditedModel(
            digest=tapped.digest,
            architecture=None if described is None else described.name,
            methods=tuple(entry.method for entry in entries),
            projected=tapped.projected,
            history=entries,
        )

    def _relearn(self) -> Iterator[RelearningCurve]:
        for role, model in self.models.items() if self.relearning is not None else ():
            splits, head = self.audited.splits("The relearn attack"), self.heads[role]
            try:
                curve = relearn(model, splits, self.run, role=role, options=self.relearning, head=head)
                self.book.add("scores", role, {"relearn_f": curve.mean_forget})
                yield curve
            except DivergenceError as error:
                # If the attack on one model diverges, the audit continues.
                self.notes.append(f"relearning the {role} model is left out: {error}")
            self.advance(self._weight, f"relearned the {role} model")

    def _layer_maps(self) -> list[LayerMap]:
        if not self.layers:
            return []
        test = self.audited.splits("The comparison of layers").test
        sides: dict[Side, IndexedSamples] = {"forget": test.forget, "retain": test.retain}
        return layer_maps(self.models, sides, self.run.torch_device, heads=self.heads, seed=self.run.seed)


def _rows_note(tapped: Tapped) -> str:
    forget, retain = (int(tapped.mask("test", side).sum()) for side in ("forget", "retain"))
    return (
        f"samples that show a forgotten class count as forgotten; CKA and RUS compare {forget:,} feature vectors of "
        f"forgotten and {retain:,} of retained classes, and their intervals are over samples"
    )


def _length(samples: IndexedSamples | Batches) -> int:
    """Return the number of samples, as far as it is known before they are read."""
    if is_indexed(samples):
        return len(samples)
    dataset = getattr(samples, "dataset", ())
    return len(dataset) if hasattr(dataset, "__len__") else 0
