"""Pictures of a page for tasks with one answer per image."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from pour.auditing.features import pooled
from pour.errors import UsageError
from pour.metrics.predictions import confusion_matrix
from pour.models.copy_and_swap import in_float32
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.tap import Features, device_of, extract_features
from pour.report.figures import (
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
from pour.training.tasks.classify import evaluation_loader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from pour.auditing.report import AuditedData, AuditReport
    from pour.models.head import Head
    from pour.report.figures import ConfusionData, TradeoffData
    from pour.report.pictures import Subject

__all__ = ["draw_gallery"]

_MAP_IMAGES = 1000
_GRADCAM_IMAGES = 10


def draw_gallery(subject: Subject) -> Gallery:
    """Return the map of features, confusion matrices, angles, Grad-CAM, answers and trade-offs."""
    first = next(iter(subject.reports))
    data = subject.reports[first].data
    few = _pictures(subject, np.arange(min(FEW_IMAGES, len(subject.samples))))
    heads = {name: head_on_images(model, few, head=subject.head) for name, model in subject.models.items()}
    names = dict.fromkeys(["original", first, *subject.models])
    features = {name: subject.features.get(name) or _features(subject, name, heads[name]) for name in names}
    original = features["original"]
    points = embedding_data(
        {name: part.features for name, part in features.items()},
        original.labels,
        classes=data.classes,
        forgotten=data.forgotten,
        limit=_MAP_IMAGES,
        seed=subject.run.seed,
    )
    answers = {name: part.scores.argmax(dim=1).cpu().numpy() for name, part in features.items()}
    rows = {
        "head": heads["original"].weight.float().cpu(),
        "class means": centered_class_means(original.features, original.labels),
    }
    shares = answers_data(subject.reports[first])
    figures = [
        FigureSection.of(
            "Features of test images, one map for all models",
            lambda theme: draw_embedding(points, theme=theme),
            caption="Each model's features are centred, scaled and rotated into the original's frame first.",
        ),
        *_confusions(features, data),
        FigureSection.of("Angles", lambda theme: draw_angles(angle_data(rows), theme=theme)),
        *_gradcam(subject, first, data, original.scores, original.labels),
        FigureSection.of("What is answered on forgotten images", lambda theme: draw_answers(shares, theme=theme)),
        *_tradeoffs(subject.reports),
    ]
    return Gallery(tuple(figures), Embedding.of(points, answers, subject.samples.images))


def _pictures(subject: Subject, rows: np.ndarray) -> Tensor:
    return torch.as_tensor(subject.samples.images[rows]).permute(0, 3, 1, 2)


def _features(subject: Subject, name: str, head: Head) -> Features:
    """Return the features of the test images, one vector per image."""
    batches = evaluation_loader(subject.samples, subject.run)
    seen = extract_features(in_float32(subject.models[name]), batches, device=subject.run.torch_device, head=head)
    return replace(seen, features=pooled(seen.features, head))


def _confusions(features: Mapping[str, Features], data: AuditedData) -> list[FigureSection]:
    size = len(data.classes)
    counts = {name: confusion_matrix(part.scores, part.labels, num_classes=size) for name, part in features.items()}

    def section(name: str) -> FigureSection:
        pair: ConfusionData = confusion_data(
            {"original": counts["original"], name: counts[name]}, classes=data.classes, forgotten=data.forgotten
        )
        group = "Answers by true class"
        title = f"{group}: original and {name}"
        return FigureSection.of(title, lambda theme: draw_confusion(pair, theme=theme), group=group, choice=name)

    return [section(name) for name in counts if name != "original"]


def _gradcam(
    subject: Subject, unlearned: str, data: AuditedData, scores: Tensor, labels: Tensor
) -> list[FigureSection]:
    """Return Grad-CAM of the image of each class that the original model recognises with the highest probability.

    There is no figure for a model without feature maps.
    """
    classes = [*data.forgotten, *(label for label in range(len(data.classes)) if label not in data.forgotten)]
    probabilities = scores.float().softmax(dim=1).cpu() * (scores.argmax(dim=1) == labels).cpu()[:, None]
    right = probabilities * torch.nn.functional.one_hot(labels.cpu(), scores.shape[1])
    rows = [int(right[:, label].argmax()) for label in classes if right[:, label].any()][:_GRADCAM_IMAGES]
    if not rows:
        return []
    original, student = (in_float32(subject.models[name]) for name in ("original", unlearned))
    images = _pictures(subject, np.array(rows)).to(device_of(original))
    try:
        maps = gradcam_data(
            original,
            student,
            images,
            labels[rows].to(images.device),
            classes=data.classes,
            forgotten=data.forgotten,
            head=subject.head,
        )
    except UsageError:
        return []
    title = f"Grad-CAM: original and {unlearned}"
    return [FigureSection.of(title, lambda theme: draw_gradcam(maps, theme=theme))]


def _tradeoffs(reports: Mapping[str, AuditReport]) -> list[FigureSection]:
    """Return the trade-offs of several methods, by accuracy and by representation."""
    if len(reports) < 2:
        return []

    def section(plane: TradeoffData) -> FigureSection:
        group = "Retention against forgetting"
        title = f"{group}, by {plane.of}"
        return FigureSection.of(title, lambda theme: draw_tradeoff(plane, theme=theme), group=group, choice=plane.of)

    return [section(tradeoff_data(reports, of="accuracy")), section(tradeoff_data(reports, of="representation"))]


for _task in ("classify", "match"):
    register_pictures(_task, draw_gallery)
