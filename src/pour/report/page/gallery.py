"""Pictures of a page for tasks with one answer per image."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.auditing.pictures import pack, unpack
from pour.data.samples import is_indexed
from pour.errors import UsageError
from pour.geometry.angles import AngleStatistics
from pour.models.copy_and_swap import in_float32
from pour.models.head import find_head
from pour.models.tap import device_of
from pour.models.unwrap import unwrap
from pour.report.figures import (
    AngleData,
    EmbeddingData,
    GradCamData,
    angle_data,
    answers_data,
    centered_class_means,
    confusion_data,
    draw_angles,
    draw_answers,
    draw_confusion,
    draw_embedding,
    draw_gradcam,
    embedding_data,
    gradcam_data,
)
from pour.report.page.feature_map import Embedding
from pour.report.page.sections import FigureSection
from pour.report.page.sprites import thumbnails
from pour.report.pictures import register_pictures

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray
    from torch import Tensor

    from pour.auditing.features import Seen
    from pour.auditing.pictures import Subject
    from pour.auditing.report import AuditReport
    from pour.data.dataset import ImageArray

__all__ = ["compute_pictures", "draw_pictures"]

_MAP_IMAGES = 1000
_GRADCAM_IMAGES = 10
# Pixels of the longest side of an image in the figure of Grad-CAM.
_GRADCAM_SIDE = 112
# More angles than this are kept as quantiles, which have the same histogram.
_ANGLES = 2000
_BATCH = 100


def compute_pictures(subject: Subject) -> dict[str, Any]:
    """Return the map of features, confusion matrices, angles and Grad-CAM."""
    data, outputs = subject.report.data, subject.seen
    original = outputs["original"]
    points = embedding_data(
        {name: part.features for name, part in outputs.items()},
        original.labels,
        classes=data.classes,
        forgotten=data.forgotten,
        limit=_MAP_IMAGES,
        seed=subject.run.seed,
    )
    embedding = Embedding(
        points=points.points,
        labels=points.labels,
        predictions={name: part.scores.argmax(dim=1).cpu().numpy()[points.rows] for name, part in outputs.items()},
        images=_thumbnails(subject, points.rows),
        numbers=points.rows,
    )
    head = find_head(unwrap(subject.models["original"]), head=subject.head)
    angles = angle_data(
        {
            "head": head.weight.float().cpu(),
            "class means": centered_class_means(original.features, original.labels),
        }
    )
    return {
        "map": embedding.payload(data),
        "confusion": {name: pack(part.confusion.cpu().numpy().astype(np.int32)) for name, part in outputs.items()},
        "angles": [_packed_angles(entry) for entry in angles],
        "gradcam": _gradcam(subject, original),
    }


def draw_pictures(report: AuditReport) -> list[FigureSection]:
    """Return the figures of the kept data, and the answers on forgotten images."""
    assert report.pictures is not None
    pictures, data = report.pictures.data, report.data
    payload = pictures["map"]
    points = EmbeddingData(
        points={name: np.array(pair, float).T for name, pair in payload["points"].items()},
        labels=np.array(payload["labels"]),
        rows=np.array(payload["rows"]),
        total=sum(data.counts["test"]),
        classes=data.classes,
        forgotten=data.forgotten,
    )
    figures = [
        FigureSection.of(
            "Features of test images, one map for all models",
            draw_embedding,
            points,
            caption="Each model's features are centred, scaled and rotated into the original's frame first.",
        ),
        *_confusions(
            {name: torch.from_numpy(unpack(counts)) for name, counts in pictures["confusion"].items()}, report
        ),
        FigureSection.of("Angles", draw_angles, tuple(map(_unpacked_angles, pictures["angles"]))),
    ]
    if pictures["gradcam"] is not None:
        cam = pictures["gradcam"]
        maps = GradCamData(
            images=unpack(cam["images"]) / 255,
            labels=unpack(cam["labels"]),
            maps={name: unpack(values).astype(np.float64) for name, values in cam["maps"].items()},
            projected=cam["projected"],
            classes=data.classes,
            forgotten=data.forgotten,
        )
        figures.append(FigureSection.of(f"Grad-CAM: original and {cam['name']}", draw_gradcam, maps))
    figures.append(FigureSection.of("What is answered on forgotten images", draw_answers, answers_data(report)))
    return figures


def _confusions(counts: Mapping[str, Tensor], report: AuditReport) -> list[FigureSection]:
    group, sections = "Answers by true class", []
    for name in counts:
        if name != "original":
            pair = {model: counts[model] for model in ("original", name)}
            shares = confusion_data(pair, classes=report.data.classes, forgotten=report.data.forgotten)
            title = f"{group}: original and {name}"
            sections.append(FigureSection.of(title, draw_confusion, shares, group=group, choice=name))
    return sections


def _packed_angles(entry: AngleData) -> dict[str, Any]:
    statistics = None if entry.statistics is None else dataclasses.asdict(entry.statistics)
    return {
        "name": entry.name,
        "shape": entry.shape,
        "statistics": statistics,
        "angles": pack(_thinned(entry.angles)),
        "control": pack(_thinned(entry.control)),
    }


def _unpacked_angles(packed: Mapping[str, Any]) -> AngleData:
    rows, width = packed["shape"]
    return AngleData(
        name=packed["name"],
        shape=(rows, width),
        statistics=None if packed["statistics"] is None else AngleStatistics(**packed["statistics"]),
        angles=unpack(packed["angles"]).astype(np.float64),
        control=unpack(packed["control"]).astype(np.float64),
    )


def _thinned(values: NDArray[np.float64]) -> NDArray[np.float32]:
    if len(values) > _ANGLES:
        values = np.quantile(values, np.linspace(0, 1, _ANGLES))
    return values.astype(np.float32)


def _gradcam(subject: Subject, original: Seen) -> dict[str, Any] | None:
    """Return Grad-CAM of the image of each class that the original model recognises with the highest probability.

    There is none for a model without feature maps, and for samples that cannot be chosen by index.
    """
    data = subject.report.data
    scores, labels = original.scores.float().cpu(), original.labels.cpu()
    is_right = (scores.argmax(dim=1) == labels)[:, None] * torch.nn.functional.one_hot(labels, scores.shape[1])
    certainty, rows = (scores.softmax(dim=1) * is_right).max(dim=0)
    order = sorted(range(len(data.classes)), key=lambda label: label not in data.forgotten)
    drawn = rows[[label for label in order if certainty[label] > 0][:_GRADCAM_IMAGES]]
    if not len(drawn) or not is_indexed(subject.samples):
        return None
    before, after = (in_float32(subject.models[name]) for name in ("original", subject.name))
    images = torch.cat([images for images, _ in subject.samples.take(drawn.numpy()).batches(_BATCH, "cpu")])
    classes = labels[drawn].to(device_of(before))
    try:
        maps = gradcam_data(
            before,
            after,
            images.to(device_of(before)),
            classes,
            classes=data.classes,
            forgotten=data.forgotten,
            head=subject.head,
        )
    except UsageError:
        return None
    pictures = thumbnails(_as_pictures(images), _GRADCAM_SIDE)
    return {
        "name": subject.name,
        "images": pack(pictures.repeat(3 // pictures.shape[3], axis=3)),
        "labels": pack(maps.labels),
        "maps": {name: pack(values.astype(np.float32)) for name, values in maps.maps.items()},
        "projected": maps.projected,
    }


def _thumbnails(subject: Subject, rows: NDArray[np.int64]) -> ImageArray | None:
    """Return small pictures of some samples, or None for samples that cannot be chosen by index."""
    if not is_indexed(subject.samples):
        return None
    batches = subject.samples.take(rows).batches(_BATCH, "cpu")
    return np.concatenate([thumbnails(_as_pictures(images)) for images, _ in batches])


def _as_pictures(images: Tensor) -> ImageArray:
    """Return inputs as pictures (n, height, width, 1 or 3). Normalised inputs are brought into the range of pixels."""
    if images.dtype != torch.uint8:
        values = images.float()
        if values.amin() < 0 or values.amax() > 1:
            low, high = (end(values, dim=(1, 2, 3), keepdim=True) for end in (torch.amin, torch.amax))
            values = (values - low) / (high - low).clamp(min=1e-12)
        images = (255 * values).round().to(torch.uint8)
    if images.shape[1] not in (1, 3):
        images = images.float().mean(dim=1, keepdim=True).to(torch.uint8)
    pictures: ImageArray = images.permute(0, 2, 3, 1).contiguous().numpy()
    return pictures


for _task in ("classify", "match"):
    register_pictures(_task, compute_pictures, draw_pictures)
