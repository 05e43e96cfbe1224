"""Train a segmentation network and describe it: one class per pixel."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pour.data.formats.scenes import SegmentationDataset
from pour.data.loader import NO_LABEL
from pour.data.registry import is_segmentation, load_segmentation
from pour.data.samples import is_indexed
from pour.data.scenes import IGNORED, Scenes
from pour.errors import UsageError
from pour.metrics._sampling import stratified_sample
from pour.metrics.segmentation import class_iou, pixel_confusion, segmentation_scores
from pour.models.head import find_head
from pour.models.networks.pretrained import read_weights
from pour.models.networks.registry import build_model
from pour.models.networks.segmentation import SegmentationModel
from pour.models.networks.user_network import is_user_network
from pour.models.output import scores_of
from pour.models.state import digest
from pour.models.tap import to_unit
from pour.training.tasks.task import Rows, Score, Task, record_head, register_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from torch import nn

    from pour.data.classes import ClassRequest
    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["Segment", "class_weights", "pixel_loss"]

# Scores at full size fill the memory: one per class and pixel.
_GPU_BATCH = 32
_CPU_BATCH = 8
# The root reduces the weights of rare classes. With the full inverse frequency, a pixel of a bicyclist would count a
# hundred times as much as a pixel of a road.
_BALANCE = 0.5


@register_task
@dataclass(frozen=True, kw_only=True)
class Segment(Task[SegmentationDataset, Scenes]):
    """One class per pixel."""

    name: ClassVar[str] = "segment"
    unit: ClassVar[str] = "pixel"
    metrics: ClassVar[tuple[str, ...]] = ("iou_r", "iou_r_rest", "iou_f", "cka_f_o", "cka_r_o", "rus_o", "raw.rus_o")

    weights: str | None = None
    """Weights that training starts from, for the network or its encoder: a file, or a name of `pour weights`."""
    enlarge: int = 1
    """Factor by which the network enlarges images."""
    limit: int | None = None
    """Largest number of images that are read of a split."""
    pixels: int = 10_000
    """Number of pixels that an audit draws on each side for CKA and RUS."""

    @classmethod
    def accepts(cls, data: str, arch: str | None) -> bool:
        return is_segmentation(data)

    def defaults(self, data: str) -> tuple[str, str]:
        return "smp:deeplabv3plus:tu-tf_efficientnet_lite0", "scenes"

    def load(self, name: str, root: str | Path | None = None, *, download: bool = False) -> SegmentationDataset:
        return load_segmentation(name, root, download=download)

    def split(self, dataset: SegmentationDataset, name: str, limit: int | None = None) -> Scenes:
        return _read(dataset.splits[name], limit=self.limit if limit is None else limit)

    @staticmethod
    def batch_size(run: Run) -> int:
        return _GPU_BATCH if run.torch_device.type == "cuda" else _CPU_BATCH

    def digest(self, dataset: SegmentationDataset) -> str:
        total = hashlib.sha256()
        for name in ("train", "test"):
            scenes = self.split(dataset, name)
            total.update(scenes.images.tobytes())
            total.update(scenes.masks.tobytes())
        return total.hexdigest()

    def classes(self, dataset: SegmentationDataset, request: ClassRequest) -> tuple[int, ...]:
        return dataset.indices(request)

    def belongs(self, labels: Tensor, classes: Collection[int]) -> Tensor:
        return torch.isin(labels, torch.tensor(list(classes), dtype=labels.dtype, device=labels.device)).any(dim=(1, 2))

    @classmethod
    def fits(cls, labels: Tensor) -> bool:
        return labels.ndim == 3

    def rows(self, features: Tensor, labels: Tensor, model: nn.Module | None = None) -> Rows:
        """Return the features at every labelled pixel, read from the cell of the feature map that contains it."""
        height, width = labels.shape[1:]
        # The feature map also covers the margin that the network adds to an image.
        frame = model.frame(height, width) if isinstance(model, SegmentationModel) else (height, width)
        samples, *places = ((labels >= 0) & (labels != IGNORED)).nonzero(as_tuple=True)
        cells = [
            (place + 0.5).mul(size / whole).long()
            for place, size, whole in zip(places, features.shape[2:], frame, strict=True)
        ]
        return Rows(features[samples, :, cells[0], cells[1]], labels[samples, places[0], places[1]], samples)

    def confusion(self, scores: Tensor, labels: Tensor) -> Tensor:
        answers = zip(scores.argmax(dim=1), labels, strict=True)
        return torch.stack([pixel_confusion(answer, truth, scores.shape[1]) for answer, truth in answers])

    def judged(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return one answer per labelled pixel."""
        samples, *places = ((labels >= 0) & (labels != IGNORED)).nonzero(as_tuple=True)
        pixels = (samples, *places)
        return labels[pixels], scores.argmax(dim=1)[pixels], samples

    def draw(self, samples: Any, classes: Collection[int], seed: int) -> Tensor:
        """Keep at most `pixels` pixels of the forgotten and of the retained classes.

        Every class has its share of its side, and every pixel of a class the same chance, so that a measure of the
        drawn pixels has the expectation of the measure of all pixels.
        """
        if not is_indexed(samples):
            raise UsageError(
                "An audit of scenes draws pixels from all masks before it runs a model, so it needs samples with an "
                "index; give scenes or a dataset instead of a loader."
            )
        if self.pixels < 2:
            raise UsageError(f"pixels is {self.pixels}; similarity needs at least 2 on each side.")
        masks = torch.as_tensor(samples.labels)
        forgotten = torch.isin(masks, torch.tensor(list(classes), dtype=masks.dtype))
        drawn = torch.full_like(masks, IGNORED)
        sides = {"forgotten": forgotten, "retained": ~forgotten & (masks != IGNORED)}
        for number, (side, mask) in enumerate(sides.items()):
            candidates = mask.flatten().nonzero().squeeze(1)
            if not len(candidates):
                raise UsageError(f"The scenes show no pixel of the {side} classes.")
            generator = torch.Generator().manual_seed(2 * seed + number)
            labels = masks.flatten()[candidates].long()
            picked = candidates[stratified_sample(labels, self.pixels, generator)]
            drawn.view(-1)[picked] = masks.flatten()[picked]
        return drawn

    def scores(self, counts: Tensor, classes: Collection[int], names: tuple[str, ...]) -> dict[str, Score]:
        """Return IoU_r, IoU_r of the rest, IoU_f and the IoU of every class."""
        forgotten = sorted(classes)
        retained = [label for label in range(len(names)) if label not in forgotten]
        measured = segmentation_scores(counts, forgotten)
        scores = {
            "iou_r": Score(measured["iou_r"], tuple(range(len(names)))),
            "iou_r_rest": Score(measured["iou_r_rest"], tuple(retained)),
            # A forgotten class without pixels and answers has no IoU: nothing of it is left.
            "iou_f": Score(measured["iou_f"], tuple(forgotten), undefined=0.0),
        }
        for label, name in enumerate(names):
            scores[f"class_iou_{'f' if label in forgotten else 'r'}_{name}"] = Score(
                measured["iou"][:, label], (label,)
            )
        return scores

    def check_head(self, head: Head, num_classes: int) -> None:
        if head.dim != 1:
            raise UsageError(
                "The model gives one answer to an image; segmentation needs a head that is a 1x1 convolution."
            )
        if head.num_classes != num_classes:
            raise UsageError(f"The model has {head.num_classes} classes, the data {num_classes}.")

    def request_data(
        self, arch: str, dataset: SegmentationDataset, classes: tuple[int, ...], train: Scenes
    ) -> dict[str, Any]:
        # Only scenes that show a forgotten class, and in them only the labels of its pixels.
        return {"forget": train.containing(classes).only(classes)}

    def identity(self) -> dict[str, Any]:
        # The digest, because another machine may keep the file under another name.
        weights = None if self.weights is None else digest(read_weights(self.weights))
        return {"enlarge": self.enlarge, "limit": self.limit, "weights": weights}

    def cell_identity(self) -> dict[str, Any]:
        return {"enlarge": self.enlarge, "limit": self.limit, "pixels": self.pixels}

    def build(self, arch: str, dataset: SegmentationDataset) -> nn.Module:
        train = self.split(dataset, "train")
        size = train.masks.shape[1]
        model = build_model(arch, dataset.num_classes, image_size=size, weights=self.weights, enlarge=self.enlarge)
        if is_user_network(arch):
            record_head(model, train)
        if find_head(model).dim != 1:
            raise UsageError(f"{arch} is no segmentation network; give one such as smp:deeplabv3plus:resnet101.")
        return model

    def loss(self, samples: Scenes, run: Run) -> Callable[..., Tensor]:
        """Return the weighted cross-entropy over pixels: each class has the root of its inverse frequency."""
        return pixel_loss(class_weights(samples).to(run.torch_device))

    def describe(
        self, model: nn.Module, dataset: SegmentationDataset, run: Run, *, without: ClassRequest = ()
    ) -> dict[str, Any]:
        """Return the mean IoU, the IoU of every class and the pixel accuracy on every split, ready for JSON."""
        scores: dict[str, Any] = {}
        for name in dataset.splits:
            confusion = self.answers(model, self.split(dataset, name), run)
            iou = class_iou(confusion.double())
            scores[name] = {
                "mean_iou": float(iou.nanmean()),
                "iou": dict(zip(dataset.classes, [None if math.isnan(x) else x for x in iou.tolist()], strict=True)),
                "accuracy": float(confusion.diagonal().sum() / confusion.sum()),
                "class_accuracy": [
                    float(right / total) if total else None
                    for right, total in zip(confusion.diagonal(), confusion.sum(dim=1), strict=True)
                ],
            }
        return {"segmentation": scores}

    def recorded_scores(self, described: Mapping[str, Any]) -> dict[str, Any]:
        splits = described["segmentation"]
        accuracy = {name: scores["accuracy"] for name, scores in splits.items()}
        return {"accuracy": accuracy, "class_accuracy": tuple(splits["test"]["class_accuracy"])}

    def summary(self, described: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        splits = described["segmentation"]
        lines = [
            (name, *("" if (iou := splits[split]["iou"][name]) is None else f"{iou:.2%}" for split in splits))
            for name in next(iter(splits.values()))["iou"]
        ]
        lines += [
            (title, *(f"{splits[split][key]:.2%}" for split in splits))
            for title, key in (("mean IoU", "mean_iou"), ("pixel accuracy", "accuracy"))
        ]
        return ("class", *splits), lines


# A grid reads the same splits for every cell.
_read = lru_cache(maxsize=3)(Scenes.of)


def class_weights(scenes: Scenes) -> Tensor:
    """Return the weight of each class in the loss, (C,): the root of its inverse frequency, 1 on average over pixels.

    Examples:
        >>> masks = np.array([[[0, 0, 0, 0], [0, 0, 0, 1]]], np.uint8)
        >>> class_weights(Scenes(np.zeros((1, 2, 4, 3), np.uint8), masks, num_classes=2))
        tensor([0.8294, 2.1943])
    """
    shares = scenes.counts() / max(1, scenes.counts().sum())
    weights = np.where(shares > 0, np.maximum(shares, 1e-12) ** -_BALANCE, 0.0)
    return torch.tensor(weights / (shares * weights).sum(), dtype=torch.float32)


def pixel_loss(weights: Tensor | None = None) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """Return the objective: the weighted mean of the cross-entropy over pixels with a label."""

    def objective(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        scores = scores_of(model(to_unit(images))).float()
        return F.cross_entropy(scores, labels, weight=weights, ignore_index=NO_LABEL)

    return objective
