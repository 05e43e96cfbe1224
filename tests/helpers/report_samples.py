"""Reports, figures and maps made by hand, so that nothing has to be trained to write a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pour.auditing import AuditedData, AuditedModel, AuditReport, Discrepancy, Line, Reading, RelearningCurve
from pour.auditing.pictures import Pictures
from pour.metrics.catalogue import list_metrics
from pour.models.history import HistoryEntry
from pour.report import FigureSection
from pour.report.page.feature_map import Embedding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.auditing import Verdict

VERDICTS: tuple[Verdict, ...] = ("within its interval", "leaks more", "destroyed", "as the original", "better")
SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 10"><circle cx="5" cy="5" r="4" fill="#888"/></svg>'


def sample_report(
    *,
    classes: Sequence[str] = ("zero", "one", "two", "three"),
    forgotten: tuple[int, ...] = (3,),
    retrained: bool = True,
    methods: tuple[str, ...] = ("pour-p",),
    shift: float = 0.0,
    history: Sequence[HistoryEntry] = (),
    embedding: Embedding | None = None,
) -> AuditReport:
    """An audit with a line for every measure of a classifier, in its section, and everything beside the lines.

    Its pictures have the map of ``embedding`` and no figure.
    """
    roles = ["original", "unlearned", *(["retrained"] if retrained else [])]
    lines = []
    judged = [metric for metric in list_metrics() if metric.above is not None and "iou_" not in metric.name]
    for index, (name, family) in enumerate((metric.name, metric.family) for metric in judged):
        value = 0.1 + 0.8 * (index * 7 % 31) / 31
        section = "scores" if family in ("accuracy", "predictions") else "features"
        for suffix in ("", "_train"):
            if suffix and name.startswith(("acc_t", "discrepancy", "relearn")):
                continue
            lines.append(
                Line(
                    name=name + suffix,
                    section=section,
                    unlearned=Reading(value=value + shift, low=value - 0.05, high=value + shift + 0.05, n=100 + index),
                    original=Reading(value=value + 0.1),
                    retrained=Reading(value=value, low=value - 0.02, high=value + 0.02) if retrained else None,
                    verdict=VERDICTS[index % len(VERDICTS)] if retrained else "no reference",
                )
            )
    raw = [
        Line(name="cka_f_o", section="raw", unlearned=Reading(value=1.0, debiased=0.99, n=9), verdict="no reference"),
    ]
    counts = np.zeros(len(classes), int)
    counts[0] = 9
    curve = tuple(Reading(value=value) for value in (0.0, 0.5))
    data = AuditedData(
        name="digits", classes=tuple(classes), forgotten=forgotten, counts={"test": (9, 90), "train": (50, 500)}
    )
    return AuditReport(
        data=data,
        pictures=None if embedding is None else Pictures(task="none", data={"map": embedding.payload(data)}),
        models={
            role: AuditedModel(
                digest=f"{index}" * 64,
                architecture="resnet18",
                methods=methods if role == "unlearned" else (),
                projected=role == "unlearned",
                history=tuple(history) if role == "unlearned" else (),
            )
            for index, role in enumerate(roles)
        },
        settings={"seed": 7, "limit": None, "precision": "fp32", "device": "cpu", "align": "procrustes"},
        lines=(*lines, *raw),
        discrepancies=(
            Discrepancy(metric="mmd", view="features", n=99, alpha=0.1, beta=0.0, total=0.5, lower=0.1, upper=0.9),
        )
        if retrained
        else (),
        collapse={role: {"num_classes": 3.0, "nc1": 0.01, "nc2_angle_mean": 120.0, "nc4": 1.0} for role in roles},
        answers={role: tuple(counts.tolist()) for role in roles},
        relearning=(RelearningCurve(role="unlearned", images_per_class=10, steps=(0, 5), forget=curve, retain=curve),),
        notes=("the entropy is absent: there is one class.",),
    )


def sample_history(method: str = "pour-p") -> list[HistoryEntry]:
    return [
        HistoryEntry(
            method=method,
            classes=(3,),
            class_names=("three",),
            options={"lr": 0.1, "note": "<b>"},
            digest_before="a" * 64,
            digest_after="b" * 64,
            steps=400,
            seconds=75.0,
            losses=(3.0, 1.0, 0.5),
        )
    ]


def sample_embedding(
    n: int = 60, classes: int = 4, *, models: Sequence[str] = ("original", "pour-p", "retrained")
) -> Embedding:
    """Class c lies around (10 c, 0), a step higher for each further model; its pictures have the brightness 60 c."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % classes
    base = np.stack([10.0 * labels, np.zeros(n)], axis=1) + rng.normal(size=(n, 2))
    images = np.broadcast_to((labels * 60 % 256).astype(np.uint8)[:, None, None, None], (n, 8, 8, 1)).copy()
    return Embedding(
        points={name: base + np.array([0, 3 * index]) for index, name in enumerate(models)},
        labels=labels,
        predictions={name: (labels + index) % classes for index, name in enumerate(models)},
        images=images,
    )


def sample_figures() -> list[FigureSection]:
    return [
        FigureSection(title="Alone", alt="a gray dot", light=SVG, dark=SVG, caption="A dot."),
        FigureSection(title="Map of zero", alt="the map of zero", light=SVG, group="Class", choice="zero"),
        FigureSection(title="Map of one", alt="the map of one", light=SVG, group="Class", choice="one"),
    ]
