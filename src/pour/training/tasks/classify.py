"""Train a classifier of images and describe it: one class per image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from pour.data.classes import resolve_classes
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.digest import split_digest
from pour.data.registry import is_segmentation, load_dataset
from pour.data.splits import Part
from pour.errors import UsageError
from pour.geometry.collapse import neural_collapse
from pour.models.card import Training, change_card
from pour.models.head import find_head
from pour.models.networks.pretrained import read_weights
from pour.models.networks.registry import build_model
from pour.models.networks.user_network import is_user_network
from pour.models.state import digest
from pour.models.tap import extract_features
from pour.training.frozen_backbone import FrozenBackbone, HeadShape
from pour.training.loop import classification_loss
from pour.training.tasks.task import Rows, Task, record_head, register_task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.training.loop import TrainingLog
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["Classify", "Images"]


@dataclass(frozen=True, kw_only=True)
class Images(Task[ImageDataset, ImageSplit]):
    """Base of the tasks on images with one class per image: data and labels, without network and loss."""

    one_label: ClassVar[bool] = True

    def load(self, name: str, root: str | Path | None = None, *, download: bool = False) -> ImageDataset:
        return load_dataset(name, root, download=download)

    def digest(self, dataset: ImageDataset) -> str:
        names = sorted(dataset.splits, key=lambda name: (name not in ("train", "test"), name == "test", name))
        return "".join(split_digest(dataset.splits[name])[:32] for name in names)

    def classes(self, dataset: ImageDataset, request: ClassRequest) -> tuple[int, ...]:
        return resolve_classes(request, num_classes=dataset.num_classes, class_names=dataset.classes)

    def belongs(self, labels: Tensor, classes: Collection[int]) -> Tensor:
        return torch.isin(labels, torch.tensor(list(classes), dtype=labels.dtype, device=labels.device))

    @classmethod
    def fits(cls, labels: Tensor) -> bool:
        return labels.ndim == 1

    def rows(self, features: Tensor, labels: Tensor, model: nn.Module | None = None) -> Rows:
        """Return one feature vector per image; tokens and maps are averaged."""
        features = features.flatten(2).mean(dim=2) if features.ndim > 2 else features
        return Rows(features, labels, torch.arange(len(labels), device=labels.device))

    def confusion(self, scores: Tensor, labels: Tensor) -> Tensor:
        n, classes = scores.shape
        counts = torch.zeros(n, classes, classes, dtype=torch.int64, device=scores.device)
        counts[torch.arange(n, device=scores.device), labels, scores.argmax(dim=1)] = 1
        return counts

    def judged(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return labels, scores.argmax(dim=1), torch.arange(len(labels), device=labels.device)

    def request_data(
        self, arch: str, dataset: ImageDataset, classes: tuple[int, ...], train: ImageSplit
    ) -> dict[str, Any]:
        part = Part.of(train, classes)
        return {
            "forget": part.forget,
            "retain": part.retain,
            "mirrors": dataset.info.mirrors,
            "class_names": dataset.classes,
            "build": partial(self.build, arch, dataset),
        }

    def describe(
        self, model: nn.Module, dataset: ImageDataset, run: Run, *, without: ClassRequest = ()
    ) -> dict[str, Any]:
        """Return the accuracy by split and by test class, and Neural Collapse on training images, ready for JSON.

        Images of the classes in `without` count as `forgotten` only.
        """
        forgotten = self.left_out(dataset, without)
        accuracy: dict[str, float] = {}
        collapse: dict[str, float | None] = {}
        by_class: tuple[float | None, ...] = ()
        for name, split in dataset.splits.items():
            tapped = extract_features(model, self.batches(split, run), device=run.torch_device)
            is_right = tapped.scores.argmax(dim=1) == tapped.labels
            is_forgotten = self.belongs(tapped.labels, forgotten)
            accuracy[name] = is_right[~is_forgotten].double().mean().item()
            if forgotten:
                accuracy[f"{name}_forgotten"] = is_right[is_forgotten].double().mean().item()
            if name == "test":
                parts = [is_right[tapped.labels == label].double() for label in range(dataset.num_classes)]
                by_class = tuple(part.mean().item() if len(part) else None for part in parts)
            if name == "train":
                head = find_head(model)
                weight = head.weight.to(tapped.features.device)
                bias = None if head.bias is None else head.bias.to(weight.device)
                features, labels = tapped.features[~is_forgotten], tapped.labels[~is_forgotten]
                collapse = neural_collapse(features, labels, weight, bias).to_dict()
        return {"accuracy": accuracy, "class_accuracy": by_class, "neural_collapse": collapse}

    def summary(self, described: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        return ("split", "accuracy"), [(name, f"{value:.2%}") for name, value in described["accuracy"].items()]


@register_task
@dataclass(frozen=True, kw_only=True)
class Classify(Images):
    """Train a classifier: one class per image."""

    name: ClassVar[str] = "classify"
    metrics: ClassVar[tuple[str, ...]] = ("acc_r", "acc_f", "aus", "rmia_tpr", "rus_o", "rus_r", "probe_linear")

    weights: str | None = None
    """Weights that training starts from: a file, or a name of `pour.models.PRETRAINED`."""
    freeze_backbone: bool = False
    """Train only the head. Methods still train the whole network."""
    image_size: int | None = None
    """Size to which a network of another library resizes images."""
    head: HeadShape = "free"
    """Shape of the head on a frozen backbone."""

    def __post_init__(self) -> None:
        if self.freeze_backbone and self.weights is None:
            raise UsageError("freeze_backbone=True trains only the head; pass the backbone's weights with weights=.")
        if self.head != "free" and not self.freeze_backbone:
            raise UsageError(f"The head {self.head!r} needs freeze_backbone=True; pass both or leave the head out.")

    @classmethod
    def accepts(cls, data: str, arch: str | None) -> bool:
        return not is_segmentation(data)

    def defaults(self, data: str) -> tuple[str, str]:
        if data == "digits":
            return "resnet-digits", "digits"
        return "resnet18", "head" if self.freeze_backbone else "fast"

    def identity(self) -> dict[str, Any]:
        options: dict[str, Any] = {} if self.image_size is None else {"image_size": self.image_size}
        if self.weights is not None:
            # The digest, because another machine may keep the file under another name.
            options |= {"weights": digest(read_weights(self.weights)), "freeze_backbone": self.freeze_backbone}
        if self.freeze_backbone:
            options["head"] = self.head
        return options

    def is_quick(self, arch: str) -> bool:
        return self.freeze_backbone

    def build(self, arch: str, dataset: ImageDataset) -> nn.Module:
        if self.freeze_backbone:
            return self._backbone(arch, dataset).build()
        height, _, channels = dataset.image_shape
        model = build_model(
            arch,
            dataset.num_classes,
            in_channels=channels,
            image_size=height,
            resize=self.image_size,
            weights=self.weights,
        )
        if is_user_network(arch):
            record_head(model, dataset.splits["train"])
        return model

    def loss(self, samples: ImageSplit, run: Run) -> Callable[..., Tensor]:
        return classification_loss

    def train_quickly(
        self, dataset: ImageDataset, recipe: Recipe, run: Run, arch: str, without: ClassRequest
    ) -> tuple[nn.Module, TrainingLog]:
        """Train the head on the features of the frozen backbone."""
        model, log = self._backbone(arch, dataset).train_head(recipe, run, without=without)
        change_card(model, training=Training(dataset=dataset.name, left_out=self.left_out(dataset, without)))
        return model, log

    def save(self, model: nn.Module, path: Path, dataset: ImageDataset, arch: str) -> None:
        if self.freeze_backbone:
            # The rest of the network is the same for all models, and in the file of weights.
            self._backbone(arch, dataset).save_head(model, path)
        else:
            super().save(model, path, dataset, arch)

    def load_model(self, path: Path, dataset: ImageDataset, arch: str) -> nn.Module:
        if self.freeze_backbone:
            return self._backbone(arch, dataset).load_head(path)
        return super().load_model(path, dataset, arch)

    def _backbone(self, arch: str, dataset: ImageDataset) -> FrozenBackbone:
        """Return the network whose head is trained; heads of the same dataset share its features."""
        return _backbone(dataset, arch, str(self.weights), self.image_size, self.head)


_backbone = lru_cache(maxsize=2)(FrozenBackbone)
