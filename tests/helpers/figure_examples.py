"""Small data for every figure, so that what holds for all of them is tested on all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.auditing import AuditedData, AuditedModel, AuditReport, LayerMap, Line, Reading, RelearningCurve
from pour.data import Scenes
from pour.report import figures

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matplotlib.figure import Figure

NAMES = ("airplane", "cat", "dog", "ship")


def reading(value: float, spread: float = 0.02) -> Reading:
    return Reading(value=value, low=max(0.0, value - spread), high=min(1.0, value + spread), n=100)


def audit_report(
    classes: Sequence[str] = NAMES,
    *,
    forgotten: tuple[int, ...] = (1,),
    method: str = "pour-p",
    answers: dict[str, tuple[int, ...]] | None = None,
    acc_f: float = 0.1,
    acc_r: float = 0.9,
    retrained: bool = True,
) -> AuditReport:
    def line(name: str, unlearned: float, original: float | None, other: float) -> Line:
        return Line(
            name=name,
            section="scores" if name.startswith("acc") else "features",
            unlearned=reading(unlearned),
            original=None if original is None else reading(original),
            retrained=reading(other) if retrained else None,
        )

    if answers is None:
        counts = list(range(1, len(classes) + 1))
        answers = {"original": tuple(counts), "unlearned": tuple(reversed(counts))}
    model = AuditedModel(digest="0" * 64, architecture=None, methods=(method,), projected=False)
    return AuditReport(
        data=AuditedData(name="toy", classes=tuple(classes), forgotten=forgotten, counts={"test": (50, 150)}),
        models={"unlearned": model},
        settings={},
        lines=(
            line("acc_f", acc_f, 0.95, 0.0),
            line("acc_r", acc_r, 0.96, 0.94),
            line("cka_f_o", 0.4, None, 0.3),
            line("cka_r_o", 0.9, None, 0.95),
        ),
        answers=answers,
    )


def embedding(classes: Sequence[str] = NAMES, *, n: int = 24, retrained: bool = True) -> figures.EmbeddingData:
    generator = np.random.default_rng(0)
    names = ["original", "unlearned", *(["retrained"] if retrained else [])]
    return figures.EmbeddingData(
        points={name: generator.normal(size=(n, 2)) for name in names},
        labels=np.arange(n) % len(classes),
        rows=np.arange(n),
        total=10 * n,
        classes=tuple(classes),
        forgotten=(1,),
        method="scikit-learn",
    )


def confusion(classes: Sequence[str] = NAMES) -> figures.ConfusionData:
    size = len(classes)
    before = 8 * torch.eye(size, dtype=torch.int64) + 2 * torch.eye(size, dtype=torch.int64).roll(1, 1)
    after = before.clone()
    after[1] = torch.eye(size, dtype=torch.int64)[2 % size] * 10
    return figures.confusion_data({"original": before, "unlearned": after}, classes=classes, forgotten=[1])


def changes(classes: Sequence[str] = NAMES) -> figures.ChangesData:
    before = [9] * len(classes)
    after = [0 if label == 1 else right for label, right in enumerate(before)]
    images = [10] * len(classes)
    return figures.changes_data(images, before, {classes[1]: after}, classes=classes, forgotten={classes[1]: [1]})


def gradcam(classes: Sequence[str] = NAMES) -> figures.GradCamData:
    count = min(len(classes), 25)
    generator = np.random.default_rng(0)
    maps = generator.random((count, 2, 2))
    after = maps.copy()
    after[1] = 0
    return figures.GradCamData(
        images=generator.random((count, 4, 4, 3)),
        labels=np.arange(count),
        classes=tuple(classes),
        forgotten=(1,),
        maps={"before": maps, "after": after, "through original": maps},
        projected=True,
    )


def segmentation(classes: Sequence[str] = NAMES) -> figures.SegmentationData:
    truth = (np.arange(24).reshape(1, 4, 6) % min(len(classes), 255)).astype(np.uint8)
    scenes = Scenes(np.zeros((1, 4, 6, 3), np.uint8), truth, num_classes=len(classes))
    after = np.where(truth == 1, 0, truth)
    return figures.SegmentationData(scenes=scenes, before=truth, after=after, classes=tuple(classes), forgotten=(1,))


def relearning() -> tuple[RelearningCurve, ...]:
    return tuple(
        RelearningCurve(
            role=role,  # type: ignore[arg-type]
            images_per_class=10,
            steps=(0, 1, 10),
            forget=tuple(reading(value) for value in values),
            retain=tuple(reading(0.9) for _ in values),
        )
        for role, values in {"original": (0.0, 0.5, 0.9), "unlearned": (0.0, 0.3, 0.8)}.items()
    )


def layer_maps(names: Sequence[str] = ("stem", "block")) -> tuple[LayerMap, ...]:
    values = tuple(tuple(1 / (1 + abs(i - j)) for j in range(len(names))) for i in range(len(names)))
    return tuple(
        LayerMap(reference=role, side=side, n=20, rows=tuple(names), columns=tuple(names), values=values)  # type: ignore[arg-type]
        for side in ("forget", "retain")
        for role in ("original", "retrained")
    )


def examples(classes: Sequence[str] = NAMES) -> dict[str, Callable[..., Figure]]:
    """A way to draw each figure with these class names; the themes are the caller's choice."""

    def losses() -> tuple[figures.LossCurve, ...]:
        return figures.loss_data({classes[0]: [3.0, 2.0, 1.0], classes[1]: [1.0, 2.0]})

    def angles() -> tuple[figures.AngleData, ...]:
        return figures.angle_data({classes[0]: torch.randn(4, 8, generator=torch.Generator().manual_seed(0))})

    def bind(draw: Callable[..., Figure], make: Callable[[], Any]) -> Callable[..., Figure]:
        return lambda **options: draw(make(), **options)

    return {
        "angles": bind(figures.draw_angles, angles),
        "answers": bind(figures.draw_answers, lambda: figures.answers_data(audit_report(classes))),
        "changes": bind(figures.draw_changes, lambda: changes(classes)),
        "confusion": bind(figures.draw_confusion, lambda: confusion(classes)),
        "embedding": bind(figures.draw_embedding, lambda: embedding(classes)),
        "gradcam": bind(figures.draw_gradcam, lambda: gradcam(classes)),
        "layers": bind(figures.draw_layers, lambda: layer_maps(classes[:2])),
        "losses": bind(figures.draw_losses, losses),
        "relearning": bind(figures.draw_relearning, relearning),
        "segmentation": bind(figures.draw_segmentation, lambda: segmentation(classes)),
        "tradeoff": bind(figures.draw_tradeoff, lambda: figures.tradeoff_data({classes[0]: audit_report(classes)})),
    }
