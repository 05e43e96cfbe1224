"""A task for pour: images that have several tags each, such as a digit that is both even and prime."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from pour.data import DatasetInfo, DeviceLoader, ImageSplit, NamedDataset, load_dataset, open_dataset
from pour.data.classes import resolve_classes
from pour.metrics import Metric
from pour.models import build_model, scores_of, to_unit
from pour.models.tap import extract_features
from pour.training import Rows, Score, Task, register_task

if TYPE_CHECKING:
    from pathlib import Path

UNKNOWN = -1
TAGS = {
    "even": (0, 2, 4, 6, 8),
    "prime": (2, 3, 5, 7),
    "loop": (0, 6, 8, 9),
    "large": (5, 6, 7, 8, 9),
}

TAG_F1_R = Metric(
    name="tag_f1_r",
    title="F1, retained tags",
    family="accuracy",
    meaning="Harmonic mean of precision and recall on test images, averaged over the retained tags.",
    formula="F_r = 2 TP / (2 TP + FP + FN)",
    better="higher",
    above="better",
    below="loss",
    percent=True,
)
TAG_F1_F = Metric(
    name="tag_f1_f",
    title="F1, forgotten tags",
    family="accuracy",
    meaning="Harmonic mean of precision and recall on test images, averaged over the forgotten tags.",
    formula="F_f = 2 TP / (2 TP + FP + FN)",
    better="lower",
    above="leak",
    below="better",
    percent=True,
)


@dataclass(frozen=True, eq=False)
class TaggedImages:
    """Images with a row of tags each."""

    images: np.ndarray
    """Images, (n, height, width, channels) uint8."""
    labels: np.ndarray
    """Tags, (n, C): 1 if the image has the tag, 0 if not, -1 if that is unknown."""

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: np.ndarray) -> TaggedImages:
        """Return the images with these indices."""
        return TaggedImages(self.images[rows], self.labels[rows])

    def without(self, classes: Any) -> TaggedImages:
        """Return the same images; nothing is known of the tags ``classes``."""
        labels = self.labels.copy()
        labels[:, list(classes)] = UNKNOWN
        return replace(self, labels=labels)

    def batches(self, batch_size: int, device: Any, **options: Any) -> DeviceLoader:
        """Return a loader of (images, tags)."""
        shared = {key: options[key] for key in ("seed", "shuffle", "drop_last") if key in options}
        return DeviceLoader(self.images, self.labels, batch_size=batch_size, device=device, **shared)


@dataclass(frozen=True, eq=False)
class TaggedDataset:
    """Images with tags, in named splits."""

    name: str
    classes: tuple[str, ...]
    info: DatasetInfo
    splits: dict[str, TaggedImages]


@cache
def read_digit_tags(root: Path) -> TaggedDataset:
    """Return scikit-learn's digits with the tags of their numbers."""
    table = np.array([[digit in digits for digits in TAGS.values()] for digit in range(10)], np.int64)
    splits = {
        name: TaggedImages(split.images, table[split.labels]) for name, split in load_dataset("digits").splits.items()
    }
    return TaggedDataset("digit-tags", tuple(TAGS), DIGIT_TAGS.info, splits)


DIGIT_TAGS = NamedDataset(
    info=DatasetInfo(name="digit-tags", title="Digits with tags", task="tags", mirrors=False), read=read_digit_tags
)


@register_task
@dataclass(frozen=True, kw_only=True)
class Tags(Task[TaggedDataset, TaggedImages]):
    """Several tags per image."""

    name: ClassVar[str] = "tags"
    metrics: ClassVar[tuple[str, ...]] = ("tag_f1_r", "tag_f1_f", "cka_r_o", "rus_o")

    threshold: float = 0.5
    """Probability from which on a tag is predicted."""

    @classmethod
    def accepts(cls, data: str, arch: str | None) -> bool:
        return data == DIGIT_TAGS.info.name

    def defaults(self, data: str) -> tuple[str, str]:
        return "resnet-digits", "digits"

    def load(self, name: str, root: Any = None, *, download: bool = False) -> TaggedDataset:
        return open_dataset(name, root, download=download)

    def digest(self, dataset: TaggedDataset) -> str:
        total = hashlib.sha256()
        for split in dataset.splits.values():
            total.update(split.images.tobytes() + split.labels.tobytes())
        return total.hexdigest()

    def classes(self, dataset: TaggedDataset, request: Any) -> tuple[int, ...]:
        return resolve_classes(request, num_classes=len(dataset.classes), class_names=dataset.classes)

    def belongs(self, labels: torch.Tensor, classes: Any) -> torch.Tensor:
        return (labels[:, list(classes)] == 1).any(dim=1)

    @classmethod
    def fits(cls, labels: torch.Tensor) -> bool:
        return labels.ndim == 2

    def rows(self, features: torch.Tensor, labels: torch.Tensor, model: torch.nn.Module | None = None) -> Rows:
        """Return an image once for each of its tags."""
        samples, tags = (labels == 1).nonzero(as_tuple=True)
        return Rows(features[samples], tags, samples)

    def confusion(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Count the predicted tags (column) beside the true tags (row) of each image."""
        predicted = scores.sigmoid() >= self.threshold
        return ((labels == 1).unsqueeze(2) & predicted.unsqueeze(1)).to(torch.int64)

    def counts(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return, per image and tag, whether it is predicted and true, predicted, and true: (n, C, 3)."""
        predicted, true = scores.sigmoid() >= self.threshold, labels == 1
        return torch.stack([predicted & true, predicted, true], dim=2).to(torch.int64)

    def scores(self, counts: torch.Tensor, classes: Any, names: tuple[str, ...]) -> dict[str, Score]:
        """Return the F1 of the retained and of the forgotten tags."""
        sides = {"tag_f1_r": [label for label in range(len(names)) if label not in classes], "tag_f1_f": list(classes)}
        return {name: Score(f1(counts)[:, side].mean(dim=1), tuple(side)) for name, side in sides.items()}

    def request_data(
        self, arch: str, dataset: TaggedDataset, classes: tuple[int, ...], train: TaggedImages
    ) -> dict[str, Any]:
        """Return the images that show a forgotten tag, with this tag as their only label, as methods expect it."""
        shown = train.labels[:, list(classes)] == 1
        rows = np.flatnonzero(shown.any(axis=1))
        forget = ImageSplit(train.images[rows], np.array(classes)[shown[rows].argmax(axis=1)])
        return {"forget": forget, "mirrors": False, "class_names": dataset.classes}

    def build(self, arch: str, dataset: TaggedDataset) -> torch.nn.Module:
        height, _, channels = dataset.splits["train"].images.shape[1:]
        return build_model(arch, len(dataset.classes), in_channels=channels, image_size=height)

    def loss(self, samples: TaggedImages, run: Any) -> Any:
        def objective(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            known = labels != UNKNOWN
            scores = scores_of(model(to_unit(images))).float()
            return F.binary_cross_entropy_with_logits(scores[known], labels[known].float())

        return objective

    def describe(
        self, model: torch.nn.Module, dataset: TaggedDataset, run: Any, *, without: Any = ()
    ) -> dict[str, Any]:
        """Return the F1 of every tag on every split."""
        found = {}
        for name in dataset.splits:
            seen = extract_features(model, self.batches(self.split(dataset, name), run), device=run.torch_device)
            values = f1(self.counts(seen.scores, seen.labels).sum(dim=0))
            found[name] = dict(zip(dataset.classes, values.tolist(), strict=True))
        return {"tag_f1": found}

    def summary(self, described: Any) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        splits = described["tag_f1"]
        tags = next(iter(splits.values()))
        return ("tag", *splits), [(tag, *(f"{splits[name][tag]:.2%}" for name in splits)) for tag in tags]


def f1(counts: torch.Tensor) -> torch.Tensor:
    """Return the F1 of each tag, (..., C), from the counts of images, (..., C, 3)."""
    return 2 * counts[..., 0] / (counts[..., 1] + counts[..., 2])
