"""Pictures of a page for tasks with one answer per image."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np
import torch

from pour.errors import UsageError
from pour.models.copy_and_swap import in_float32
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.tap import device_of
from pour.report.figures import (
    PlaneOf,
    angle_data,
    answers_data,
    centered_class_means,
    confusion_data,
    draw_angles,
    draw_answers,
    draw_confusion,
    draw_embedding,
    draw_gradcam,
    draw_tradeoff,
    embedding_data,
    gradcam_data,
    tradeoff_data,
)
from pour.report.page.feature_map import Embedding
from pour.report.page.sections import FigureSection
from pour.report.pictures import Gallery, register_pictures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pour.auditing.features import Seen
    from pour.auditing.report import AuditedData, AuditReport
    from pour.report.pictures import Subject

__all__ = ["draw_gallery"]

_MAP_IMAGES = 1000
_GRADCAM_IMAGES = 10


def draw_gallery(subject: Subject) -> Gallery:
    """Return the map of features, confusion matrices, angles, Grad-CAM, answers and trade-offs."""
    first = next(iter(subject.reports))
    data = subject.reports[first].data
    few = _pictures(subject, np.arange(min(FEW_IMAGES, len(subject.samples))))
    head = head_on_images(subject.models["original"], few, head=subject.head)
    seen = subject.seen
    original = seen["original"]
    points = embedding_data(
        {name: part.features for name, part in seen.items()},
        original.labels,
        classes=data.classes,
        forgotten=data.forgotten,
        limit=_MAP_IMAGES,
        seed=subject.run.seed,
    )
    rows = {
        "head": head.weight.float().cpu(),
        "class means": centered_class_means(original.features, original.labels),
    }
    figures = [
        FigureSection.of(
            "Features of test images, one map for all models",
            draw_embedding,
            points,
            caption="Each model's features are centred, scaled and rotated into the original's frame first.",
        ),
        *_confusions(seen, data),
        FigureSection.of("Angles", draw_angles, angle_data(rows)),
        *_gradcam(subject, first, data, original),
        FigureSection.of("What is answered on forgotten images", draw_answers, answers_data(subject.reports[first])),
        *_tradeoffs(subject.reports),
    ]
    embedding = Embedding(
        points=points.points,
        labels=points.labels,
        predictions={name: part.scores.argmax(dim=1).cpu().numpy()[points.rows] for name, part in seen.items()},
        images=subject.samples.images[points.rows],
        numbers=points.rows,
    )
    return Gallery(tuple(figures), embedding)


def _pictures(subject: Subject, rows: np.ndarray) -> Tensor:
    return torch.as_tensor(subject.samples.images[rows]).permute(0, 3, 1, 2)


def _confusions(seen: Mapping[str, Seen], data: AuditedData) -> list[FigureSection]:
    group, sections = "Answers by true class", []
    for name in seen:
        if name != "original":
            counts = {model: seen[model].confusion for model in ("original", name)}
            shares = confusion_data(counts, classes=data.classes, forgotten=data.forgotten)
            title = f"{group}: original and {name}"
            sections.append(FigureSection.of(title, draw_confusion, shares, group=group, choice=name))
    return sections


def _gradcam(subject: Subject, unlearned: str, data: AuditedData, original: Seen) -> list[FigureSection]:
    """Return Grad-CAM of the image of each class that the original model recognises with the highest probability.

    There is no figure for a model without feature maps.
    """
    scores, labels = original.scores.float().cpu(), original.labels.cpu()
    is_right = (scores.argmax(dim=1) == labels)[:, None] * torch.nn.functional.one_hot(labels, scores.shape[1])
    certainty, rows = (scores.softmax(dim=1) * is_right).max(dim=0)
    order = sorted(range(len(data.classes)), key=lambda label: label not in data.forgotten)
    drawn = rows[[label for label in order if certainty[label] > 0][:_GRADCAM_IMAGES]]
    before, after = (in_float32(subject.models[name]) for name in ("original", unlearned))
    images = _pictures(subject, drawn.numpy()).to(device_of(before))
    classes = labels[drawn].to(images.device)
    try:
        maps = gradcam_data(
            before, after, images, classes, classes=data.classes, forgotten=data.forgotten, head=subject.head
        )
    except UsageError:
        return []
    return [FigureSection.of(f"Grad-CAM: original and {unlearned}", draw_gradcam, maps)]


def _tradeoffs(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    """Return the trade-offs of several methods, by accuracy and by representation."""
    group = "Retention against forgetting"
    planes = [tradeoff_data(reports, of=of) for of in get_args(PlaneOf)] if len(reports) > 1 else []
    return [
        FigureSection.of(f"{group}, by {plane.of}", draw_tradeoff, plane, group=group, choice=plane.of)
        for plane in planes
    ]


for _task in ("classify", "match"):
    register_pictures(_task, draw_gallery)
