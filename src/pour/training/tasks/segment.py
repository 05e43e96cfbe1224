"""Training and retraining a segmentation network on a named dataset, and describing what came out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pour.data.scene_loader import NO_LABEL, SceneAugment, SceneLoader
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.metrics.segmentation import pixel_confusion, segmentation_scores
from pour.models.card import set_class_names
from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.networks.pretrained import read_weights
from pour.models.networks.registry import build_model
from pour.models.output import scores_of
from pour.models.state import digest
from pour.models.tap import to_unit
from pour.models.unwrap import unwrap
from pour.training.loop import TrainingLog, fit
from pour.training.resume import ResumeFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import nn

    from pour.data.classes import ClassRequest
    from pour.data.formats.scenes import SegmentationDataset
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["describe_segmenter", "evaluate_segmenter", "pixel_loss", "scene_batches", "train_segmenter"]

# Scores at full size are what fills memory: eleven of them to a pixel.
_GPU_BATCH = 32
_CPU_BATCH = 8
# The root tempers the inverse frequency: in full, a bicyclist's pixel would count a hundred times a road's.
_BALANCE = 0.5


def train_segmenter(
    dataset: SegmentationDataset,
    recipe: Recipe,
    run: Run,
    *,
    arch: str,
    without: ClassRequest = (),
    weights: str | Path | None = None,
    enlarge: int = 1,
    limit: int | None = None,
    resume: Path | None = None,
    resume_seconds: float = 20.0,
) -> tuple[nn.Module, TrainingLog]:
    """Train ``arch`` on a segmentation dataset; with ``without``, those classes' pixels count for nothing.

    The loss is the cross-entropy over pixels, void left out, each class weighted with the root of its inverse
    frequency. The head keeps a score for every class of the dataset.

    Args:
        dataset: what to train on.
        recipe: how.
        run: seed, device, precision, progress.
        arch: a segmentation network from :func:`pour.list_models`.
        without: classes that are not learnt, by name or index: the retrained reference.
        weights: what to start from, for the whole network or its encoder: a file, or a name of ``pour weights``.
        enlarge: enlarge images by this factor inside the network.
        limit: train on only so many images.
        resume: where to keep the state of an unfinished run; the same call goes on from there.
        resume_seconds: how often, at most, that state is written.
    """
    scenes = Scenes.of(dataset.splits["train"], limit=limit)
    if without not in ((), []):
        scenes = scenes.without(dataset.indices(without))
    with run.seeded():
        model = build_model(
            arch, dataset.num_classes, image_size=scenes.masks.shape[1], weights=weights, enlarge=enlarge
        )
    if find_head(model).dim != 1:
        raise UsageError(f"{arch} is no segmentation network; give one such as smp:deeplabv3plus:resnet101.")
    set_class_names(model, dataset.classes)
    loader = SceneLoader(
        scenes,
        batch_size=recipe.batch_size,
        device=run.torch_device,
        seed=run.seed,
        shuffle=True,
        augment=SceneAugment() if recipe.augment else None,
        drop_last=True,
    )
    file = None
    if resume is not None:
        identity = {
            "arch": arch,
            "enlarge": enlarge,
            "data": [
                hashlib.blake2b(part.tobytes(), digest_size=16).hexdigest() for part in (scenes.images, scenes.masks)
            ],
            "recipe": asdict(recipe),
            "seed": run.seed,
            "precision": run.precision,
            "weights": None if weights is None else digest(read_weights(weights)),
        }
        file = ResumeFile(path=resume, fingerprint=json.dumps(identity, sort_keys=True), seconds=resume_seconds)
    objective = pixel_loss(class_weights(scenes).to(run.torch_device))
    description = f"training {arch} on {dataset.name}"
    log = fit(model, loader, recipe, run, objective=objective, resume=file, description=description)
    return model, log


def class_weights(scenes: Scenes) -> Tensor:
    """The weight of each class in the loss, (C,): the root of its inverse frequency, 1 on average over pixels.

    Example:
        >>> masks = np.array([[[0, 0, 0, 0], [0, 0, 0, 1]]], np.uint8)
        >>> class_weights(Scenes(np.zeros((1, 2, 4, 3), np.uint8), masks, num_classes=2))
        tensor([0.8294, 2.1943])
    """
    shares = scenes.counts() / max(1, scenes.counts().sum())
    weights = np.where(shares > 0, np.maximum(shares, 1e-12) ** -_BALANCE, 0.0)
    return torch.tensor(weights / (shares * weights).sum(), dtype=torch.float32)


def pixel_loss(weights: Tensor | None = None) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """The objective: cross-entropy over pixels with a label, a weighted mean over them."""

    def objective(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        scores = scores_of(model(to_unit(images))).float()
        return F.cross_entropy(scores, labels, weight=weights, ignore_index=NO_LABEL)

    return objective


def scene_batches(scenes: Scenes, run: Run) -> SceneLoader:
    """The scenes in their order, as they are."""
    size = _GPU_BATCH if run.torch_device.type == "cuda" else _CPU_BATCH
    return SceneLoader(scenes, batch_size=size, device=run.torch_device)


def evaluate_segmenter(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], run: Run) -> Tensor:
    """The confusion of ``model`` over ``batches``: pixels by true and predicted class, (C, C)."""
    network = unwrap(model).to(run.torch_device)
    classes = find_head(network).num_classes
    counts = torch.zeros(classes, classes, dtype=torch.int64, device=run.torch_device)
    with evaluating(network), torch.inference_mode():
        for images, labels in batches:
            scores = scores_of(network(to_unit(images.to(run.torch_device))))
            counts += pixel_confusion(scores.argmax(dim=1), labels.to(run.torch_device), classes)
    return counts


def describe_segmenter(
    model: nn.Module, dataset: SegmentationDataset, run: Run, *, limit: int | None = None
) -> dict[str, Any]:
    """Mean IoU, IoU of every class and pixel accuracy on every split, ready for JSON."""
    found: dict[str, Any] = {}
    for name, split in dataset.splits.items():
        confusion = evaluate_segmenter(model, scene_batches(Scenes.of(split, limit=limit), run), run)
        # Which class is "forgotten" does not matter for the IoU of single classes.
        iou = segmentation_scores(confusion, [0]).iou
        known = [value for value in iou if value is not None]
        found[name] = {
            "mean_iou": sum(known) / len(known),
            "iou": dict(zip(dataset.classes, iou, strict=True)),
            "accuracy": float(confusion.diagonal().sum() / confusion.sum()),
        }
    return {"segmentation": found}
