"""The work of an audit, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from itertools import product, zip_longest
from typing import TYPE_CHECKING, Literal

from pour._progress import ProgressBar
from pour.auditing.cache import MeasureCache
from pour.auditing.distance import Align, Discrepancy, decide, discrepancies
from pour.auditing.features import Role, Side, Tapped, Tapper, View
from pour.auditing.layers import layer_maps
from pour.auditing.measure import Measurer, aus_reading
from pour.auditing.measurement import Reading
from pour.auditing.relearning import Relearning, RelearningCurve, relearn
from pour.auditing.report import AuditedData, AuditedModel, AuditReport
from pour.auditing.report_lines import LineBook
from pour.auditing.shared_encoders import same_encoder
from pour.auditing.similarity import rus_reading, similarities
from pour.errors import DivergenceError
from pour.geometry.bound import BoundMetric
from pour.metrics.predictions import answer_distance
from pour.models.card import architecture
from pour.models.history import forgotten_before, history
from pour.training.run import Precision, Run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    import torch
    from torch import nn

    from pour.auditing.layers import LayerMap
    from pour.data.samples import IndexedSamples
    from pour.data.splits import Splits

__all__ = ["Auditor"]

_FROZEN = (
    "the retrained encoder is the original one, as with a frozen backbone, so nothing about representations is read "
    "against it: CKA(r), RUS(r) and the distances to the retrained model are left out"
)
_BASES: tuple[Literal["original", "retrained"], ...] = ("original", "retrained")
# The unlearned model comes last: it is read against the other two.
_COMPARED: tuple[Role, ...] = ("original", "retrained_second", "unlearned")


@dataclass
class Auditor:
    """The order of an audit: tap all models, measure each alone, each pair, then the attacks that train."""

    models: Mapping[Role, nn.Module]
    splits: Splits
    class_counts: Mapping[int, int]
    device: torch.device
    precision: Precision
    align: Align
    epsilon: float | None
    heads: Mapping[Role, str]
    seed: int
    cache: Path | None
    cache_unlearned: bool

    def report(self, *, limit: int | None, attack: Relearning | None, layers: bool, progress: bool) -> AuditReport:
        """Do everything; see :func:`pour.audit`."""
        parts = {"test": self.splits.test, "train": self.splits.train, **self.splits.extra}
        measurer = Measurer(seed=self.seed, class_counts=self.class_counts)
        book = LineBook()
        images = sum(len(part.whole) for part in parts.values())
        # Measuring a model takes about as long as running it over a few thousand images.
        weight = max(1, images // 10)
        total = len(self.models) * (images + weight * (3 + (attack is not None)))
        done = 0
        with ProgressBar(total, "audit", enabled=progress) as bar:

            def advance(count: int, note: str) -> None:
                nonlocal done
                done += count
                bar.update(min(done, total), note=note)

            tapper = Tapper(
                splits={name: part.whole for name, part in parts.items()},
                forgotten=self.splits.forgotten,
                device=self.device,
                precision=self.precision,
                heads=self.heads,
                cache=self.cache,
                cache_unlearned=self.cache_unlearned,
                advance=advance,
            )
            tapped = tapper.tap_all(self.models)
            settings = [self.splits.forgotten, sorted(self.class_counts.items()), self.seed, self.align]
            memory = MeasureCache(self.cache, json.dumps(settings), measurer.notes)
            # What is measured of representations: a reference that shares the original's encoder has none of its own.
            compared = tapped
            if self._frozen():
                compared = {role: model for role, model in tapped.items() if not role.startswith("retrained")}
                measurer.notes.append(_FROZEN)
            views: tuple[View, ...] = ("features", "raw") if tapped["unlearned"].projected else ("features",)
            collapse: dict[str, dict[str, float]] = {}
            measurer.notes.extend(self._doubts(self._scores(tapped, measurer, book)))
            self._similarities(compared, views, book, memory)
            for role, model in compared.items():
                collapse[role] = self._alone(model, views, measurer, book, memory)
                advance(2 * weight, f"measured the {role} model")
            distances = self._distances(compared, views, measurer, book, memory)
            advance(len(self.models) * weight, "measured distances")
            curves: list[RelearningCurve] = []
            for role in self.models if attack is not None else ():
                try:
                    curves.append(self._relearned(role, attack, book))
                except DivergenceError as error:
                    # One model's attack that runs away must not cost the whole audit.
                    measurer.notes.append(f"relearning the {role} model is left out: {error}")
                advance(weight, f"relearned the {role} model")
            maps: list[LayerMap] = []
            if layers:
                sides: dict[Side, IndexedSamples] = {
                    "forget": self.splits.forget_test,
                    "retain": self.splits.retain_test,
                }
                maps = layer_maps(self.models, sides, self.device, heads=self.heads, seed=self.seed)
        return AuditReport(
            data=AuditedData(
                name=self.splits.name,
                classes=self.splits.classes,
                # In one order: the same request is the same data.
                forgotten=tuple(sorted(self.splits.forgotten)),
                counts={name: (len(part.forget), len(part.retain)) for name, part in parts.items()},
            ),
            models={role: self._described(role, tapped[role]) for role in self.models},
            settings={
                "seed": self.seed,
                "limit": limit,
                "precision": self.precision,
                "device": self.device.type,
                "align": self.align,
            },
            lines=book.lines(),
            discrepancies=tuple(distances),
            collapse=collapse,
            answers={role: tuple(measurer.called(model)) for role, model in tapped.items()},
            layers=tuple(maps),
            relearning=tuple(curves),
            notes=tuple(measurer.notes),
        )

    def _doubts(self, readings: Mapping[Role, Mapping[str, Reading]]) -> Iterator[str]:
        """What speaks against the models' being what they were given as."""
        for role, found in readings.items():
            known = found["acc_tf"].value
            if role.startswith("retrained") and known > 1 / self.splits.num_classes:
                yield (
                    f"the {role} model recognises {known:.1%} of the forgotten training images, so it seems to have "
                    "been trained on them, and verdicts against it mean nothing"
                )
        done, asked = forgotten_before(self.models["unlearned"]), set(self.splits.forgotten)
        missing, further = asked - done, done - asked
        if done and missing:
            yield f"the unlearned model's history has no request to forget {self._names(missing)}"
        if further:
            yield (
                f"the unlearned model was made to forget {self._names(further)} as well, whose images count as "
                "retained here; audit all of its classes together"
            )

    def _names(self, classes: Iterable[int]) -> str:
        known = dict(enumerate(self.splits.classes))
        return ", ".join(known.get(label, str(label)) for label in sorted(classes))

    def _frozen(self) -> bool:
        return "retrained" in self.models and same_encoder(
            self.models["original"],
            self.models["retrained"],
            heads=(self.heads["original"], self.heads["retrained"]),
        )

    def _suffixes(self) -> tuple[tuple[str, str], ...]:
        """The splits, and what the names of measures on each end in."""
        return (("test", ""), ("train", "_train"), *((name, f"_{name}") for name in self.splits.extra))

    def _compared_splits(self) -> tuple[tuple[str, str], ...]:
        """Those with images on both sides, two at least."""
        whole = {name: part for name, part in self.splits.extra.items() if min(len(part.forget), len(part.retain)) < 2}
        return tuple(entry for entry in self._suffixes() if entry[0] not in whole)

    def _described(self, role: Role, tapped: Tapped) -> AuditedModel:
        model = self.models[role]
        known = architecture(model)
        return AuditedModel(
            digest=tapped.digest,
            architecture=None if known is None else known.name,
            methods=tuple(record.method for record in history(model)),
            projected=tapped.projected,
        )

    def _scores(
        self, tapped: Mapping[Role, Tapped], measurer: Measurer, book: LineBook
    ) -> dict[Role, dict[str, Reading]]:
        readings = {role: measurer.scores(model) for role, model in tapped.items()}
        for role, found in readings.items():
            accuracies = {name: reading for name, reading in found.items() if name.startswith("acc_")}
            scores = {
                f"aus{suffix}": aus_reading(readings["original"], found, suffix)
                for split, suffix in self._suffixes()
                # An extra test set may lack one of the sides.
                if split != "train" and {f"acc_r{suffix}", f"acc_f{suffix}"} <= found.keys()
            }
            book.add("scores", role, {**accuracies, **scores, **found})
        for (split, suffix), role in product(self._suffixes(), tapped) if "retrained" in tapped else ():
            both = [measurer.called(model, split) for model in (tapped[role], tapped["retrained"])]
            if role != "retrained" and any(both[0]):
                # A model may have scores for more classes than the data, and the other need not have as many.
                answers, reference = zip(*zip_longest(*both, fillvalue=0), strict=True)
                apart = Reading.of(answer_distance(answers, reference), sum(answers))
                # Nothing can be too close to the retrained model.
                reading = replace(apart, low=0.0) if role == "retrained_second" else apart
                book.add("scores", role, {f"answers_r{suffix}": reading})
        return readings

    def _alone(
        self, tapped: Tapped, views: tuple[View, ...], measurer: Measurer, book: LineBook, memory: MeasureCache
    ) -> dict[str, float]:
        found: dict[str, Reading] = {}
        sources = (tapped.source,)
        for view in views:
            # Without a projector the raw features are those that the head sees.
            if view == "features" or tapped.projected:
                measure = partial(measurer.features, tapped, view)
                found = memory.recall(dict[str, Reading], f"{view} of {tapped.role}", sources, measure)
            book.add(view, tapped.role, found)

        readings, everything = memory.recall(
            tuple[dict[str, Reading], dict[str, float]],
            f"collapse of {tapped.role}",
            sources,
            partial(measurer.collapse, tapped),
        )
        book.add("features", tapped.role, readings)
        return everything

    def _similarities(
        self, tapped: Mapping[Role, Tapped], views: tuple[View, ...], book: LineBook, memory: MeasureCache
    ) -> None:
        """CKA and RUS of every model against the original (o) and the retrained model (r)."""
        known: dict[object, dict[str, Reading]] = {}
        for view, (split, suffix), base in product(views, self._compared_splits(), _BASES):
            for role, model in tapped.items() if base in tapped else ():
                if role == base:
                    continue
                # CKA is symmetric, and raw features are something else for projected models only.
                pair = frozenset((role, base))
                as_seen = view if model.projected or tapped[base].projected else "features"
                if (pair, split, as_seen) not in known:
                    what, sources = f"similarity on {split}, {as_seen}", (model.source, tapped[base].source)
                    measure = partial(similarities, model, tapped[base], split, as_seen)
                    known[pair, split, as_seen] = memory.recall(dict[str, Reading], what, sources, measure)
                cka = known[pair, split, as_seen]
                letter = base[0]
                names = (f"cka_f_{letter}{suffix}", f"cka_r_{letter}{suffix}", f"rus_{letter}{suffix}")
                readings = (cka["f"], cka["r"], rus_reading(cka["f"], cka["r"], base))
                book.add(view, role, dict(zip(names, readings, strict=True)))

    def _distances(
        self,
        tapped: Mapping[Role, Tapped],
        views: tuple[View, ...],
        measurer: Measurer,
        book: LineBook,
        memory: MeasureCache,
    ) -> list[Discrepancy]:
        decided: list[Discrepancy] = []
        known: dict[Role, dict[BoundMetric, Discrepancy]] = {}
        for view, role in product(views, _COMPARED) if "retrained" in tapped else ():
            if role in tapped and (view == "features" or tapped[role].projected):
                known[role] = self._to_retrained(tapped[role], tapped["retrained"], view, measurer, memory)
            if role != "unlearned":
                continue
            for metric, value in known[role].items():
                before, floor = (
                    known[other][metric].total if metric in known.get(other, {}) else None
                    for other in ("original", "retrained_second")
                )
                decided.append(decide(value, original=before, floor=floor, epsilon=self.epsilon))
                for other, values in known.items():
                    if metric in values:
                        # Nothing can be too close to the retrained model, so the floor's interval starts at 0.
                        low = 0.0 if other == "retrained_second" else None
                        total = Reading(value=values[metric].total, low=low, n=value.n)
                        book.add(view, other, {f"discrepancy_{metric}": total})
        return decided

    def _to_retrained(
        self, model: Tapped, retrained: Tapped, view: View, measurer: Measurer, memory: MeasureCache
    ) -> dict[BoundMetric, Discrepancy]:
        what = f"the distance of the {model.role} model to the retrained one"

        def measure() -> dict[BoundMetric, Discrepancy]:
            compare = partial(discrepancies, model, retrained, view, align=self.align, seed=self.seed)
            return measurer.attempt(what, compare) or {}

        sources = (model.source, retrained.source)
        return memory.recall(dict[BoundMetric, Discrepancy], f"{what}, {view}", sources, measure)

    def _relearned(self, role: Role, attack: Relearning | None, book: LineBook) -> RelearningCurve:
        run = Run(seed=self.seed, device=self.device, precision=self.precision, progress=False)
        curve = relearn(self.models[role], self.splits, run, role=role, options=attack, head=self.heads[role])
        book.add("scores", role, {"relearn_f": curve.mean_forget})
        return curve
