"""The steps of an audit in their order."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pour._progress import ProgressBar
from pour.auditing.cache import MeasureCache
from pour.auditing.inspect import Inspector
from pour.auditing.layers import layer_maps
from pour.auditing.measure import Measurer
from pour.auditing.relearning import relearn
from pour.auditing.report import AuditedData, AuditedModel, AuditReport
from pour.auditing.shared_encoders import same_encoder
from pour.auditing.tapper import Tapper
from pour.data.samples import is_indexed
from pour.errors import DivergenceError
from pour.models.card import architecture
from pour.models.history import forgotten_before, history

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from torch import nn

    from pour.auditing.audited import Audited
    from pour.auditing.distance import Align
    from pour.auditing.features import Role, Side, Tapped, View
    from pour.auditing.layers import LayerMap
    from pour.auditing.measurement import Reading
    from pour.auditing.relearning import Relearning, RelearningCurve
    from pour.data.samples import Batches, IndexedSamples
    from pour.data.splits import Splits
    from pour.training.run import Run

__all__ = ["Auditor"]

_FROZEN = (
    "the retrained encoder is the original one, as with a frozen backbone, so representations are not compared with "
    "it: CKA(r), RUS(r) and the distances to the retrained model are left out"
)


@dataclass(kw_only=True)
class Auditor:
    """Runs the models, measures them, and attacks them. The order of the steps is the order of the report."""

    models: Mapping[Role, nn.Module]
    heads: Mapping[Role, str]
    audited: Audited
    run: Run
    cache: Path | None
    cache_unlearned: bool
    align: Align
    epsilon: float | None
    notes: list[str] = field(default_factory=list)
    """Remarks of all steps."""
    _bar: ProgressBar | None = None
    _done: int = 0
    _total: int = 0

    def report(
        self,
        *,
        limit: int | None,
        splits: Splits | None,
        relearning: Relearning | None,
        layers: bool,
        progress: bool,
    ) -> AuditReport:
        """Return the report.

        Args:
            limit: Largest number of training samples on each side, for the record.
            splits: Samples of the relearn attack and of the comparison of layers.
            relearning: Options of the relearn attack; None leaves it out.
            layers: Whether to compare layers.
            progress: Show a progress bar.
        """
        samples = sum(_length(part) for part in self.audited.samples.values())
        # Measuring a model takes about as long as running it over a few thousand images.
        weight = max(1, samples // 10)
        self._total = len(self.models) * (samples + weight * (3 + (relearning is not None)))
        curves: list[RelearningCurve] = []
        maps: list[LayerMap] = []
        with ProgressBar(self._total, "audit", enabled=progress) as self._bar:
            tapped = self._tap()
            inspector = self._inspect(tapped, weight)
            if splits is not None and relearning is not None:
                curves += self._relearn(splits, relearning, weight)
            if splits is not None and layers:
                sides: dict[Side, IndexedSamples] = {"forget": splits.forget_test, "retain": splits.retain_test}
                maps = layer_maps(self.models, sides, self.run.torch_device, heads=self.heads, seed=self.run.seed)
        for curve in curves:
            inspector.book.add("scores", curve.role, {"relearn_f": curve.mean_forget})
        report = AuditReport(
            data=AuditedData(
                name=self.audited.name,
                classes=self.audited.classes,
                # Sorted, because the same request in another order has the same data.
                forgotten=tuple(sorted(self.audited.forgotten)),
                counts=inspector.counts,
                unit=self.audited.task.unit,
            ),
            models={role: self._described(role, tapped[role]) for role in self.models},
            settings={
                "seed": self.run.seed,
                "limit": limit,
                "precision": self.run.precision,
                "device": self.run.torch_device.type,
                "align": self.align,
            },
            lines=inspector.book.lines(),
            discrepancies=tuple(inspector.discrepancies),
            collapse=inspector.collapse,
            answers={role: tuple(model.answers()) for role, model in tapped.items()},
            layers=tuple(maps),
            relearning=tuple(curves),
            notes=tuple(self.notes),
        )
        return report.keep({role: model.splits["test"] for role, model in tapped.items()})

    def _advance(self, count: int, note: str) -> None:
        self._done += count
        if self._bar is not None:
            self._bar.update(min(self._done, self._total), note=note)

    def _inspect(self, tapped: Mapping[Role, Tapped], weight: int) -> Inspector:
        """Measure the models, each alone and in pairs."""
        inspector = self._inspector(tapped["unlearned"])
        answers = inspector.measure_answers(tapped)
        compared = tapped
        if self._is_frozen():
            # A reference that shares the original's encoder has no representations of its own.
            compared = {role: model for role, model in tapped.items() if not role.startswith("retrained")}
            self.notes.append(_FROZEN)
        self.notes.extend(self._doubts(answers))
        views: tuple[View, ...] = ("features", "raw") if tapped["unlearned"].projected else ("features",)
        inspector.measure_similarities(compared, views)
        if self.audited.task.one_label:
            for role, model in compared.items():
                inspector.measure_features(model, views)
                self._advance(2 * weight, f"measured the {role} model")
            inspector.measure_distances(compared, views)
            self._advance(len(self.models) * weight, "measured distances")
        else:
            self.notes.append(_rows_note(tapped["unlearned"]))
        return inspector

    def _tap(self) -> dict[Role, Tapped]:
        tapper = Tapper(
            task=self.audited.task,
            samples=self.audited.samples,
            forgotten=self.audited.forgotten,
            device=self.run.torch_device,
            precision=self.run.precision or "fp32",
            heads=self.heads,
            seed=self.run.seed,
            cache=self.cache,
            cache_unlearned=self.cache_unlearned,
            advance=self._advance,
            notes=self.notes,
        )
        return tapper.tap_all(self.models)

    def _inspector(self, tapped: Tapped) -> Inspector:
        counts = {}
        for name, samples in self.audited.samples.items():
            # A loader's labels are known only after the pass.
            counts[name] = self.audited.side_counts(samples) if is_indexed(samples) else tapped.side_counts(name)
            self.audited.check_sides(name, counts[name])
        class_counts = self.audited.class_counts
        if not class_counts and "train" in counts:
            class_counts = dict(enumerate(torch.bincount(tapped.labels("train")).tolist()))
        measurer = Measurer(seed=self.run.seed, class_counts=class_counts, notes=self.notes)
        settings = [self.audited.forgotten, sorted(class_counts.items()), self.run.seed, self.align]
        return Inspector(
            audited=self.audited,
            counts=counts,
            measurer=measurer,
            memory=MeasureCache(self.cache, json.dumps(settings), self.notes),
            align=self.align,
            epsilon=self.epsilon,
        )

    def _is_frozen(self) -> bool:
        """Return whether the retrained model has the encoder of the original."""
        return "retrained" in self.models and same_encoder(
            self.models["original"],
            self.models["retrained"],
            heads=(self.heads["original"], self.heads["retrained"]),
        )

    def _doubts(self, readings: Mapping[Role, Mapping[str, Reading]]) -> Iterator[str]:
        """Yield the signs that a model does not have the role that it was passed as."""
        for role, scores in readings.items():
            accuracy = scores["acc_tf"].value if "acc_tf" in scores else 0.0
            if role.startswith("retrained") and accuracy > 1 / len(self.audited.classes):
                yield (
                    f"the {role} model recognises {accuracy:.1%} of the forgotten training images, so it seems to have "
                    "been trained on them, and verdicts against it mean nothing"
                )
        recorded, forgotten = forgotten_before(self.models["unlearned"]), set(self.audited.forgotten)
        missing, further = forgotten - recorded, recorded - forgotten
        if recorded and missing:
            yield f"the unlearned model's history has no request to forget {self._names(missing)}"
        if further:
            yield (
                f"the unlearned model was made to forget {self._names(further)} as well, whose images count as "
                "retained here; audit all of its classes together"
            )

    def _names(self, classes: Iterable[int]) -> str:
        names = dict(enumerate(self.audited.classes))
        return ", ".join(names.get(label, str(label)) for label in sorted(classes))

    def _described(self, role: Role, tapped: Tapped) -> AuditedModel:
        model = self.models[role]
        described = architecture(model)
        return AuditedModel(
            digest=tapped.digest,
            architecture=None if described is None else described.name,
            methods=tuple(entry.method for entry in history(model)),
            projected=tapped.projected,
        )

    def _relearn(self, splits: Splits, options: Relearning, weight: int) -> Iterator[RelearningCurve]:
        for role, model in self.models.items():
            try:
                yield relearn(model, splits, self.run, role=role, options=options, head=self.heads[role])
            except DivergenceError as error:
                # The attack on one model that diverges must not cost the whole audit.
                self.notes.append(f"relearning the {role} model is left out: {error}")
            self._advance(weight, f"relearned the {role} model")


def _rows_note(tapped: Tapped) -> str:
    forget, retain = (int(tapped.mask("test", side).sum()) for side in ("forget", "retain"))
    return (
        f"samples that show a forgotten class count as forgotten; CKA and RUS compare {forget:,} feature vectors of "
        f"forgotten and {retain:,} of retained classes, and their intervals are over samples"
    )


def _length(samples: IndexedSamples | Batches) -> int:
    """Return the number of samples, as far as it is known before they are read."""
    return len(samples) if is_indexed(samples) else len(getattr(samples, "dataset", ()))
