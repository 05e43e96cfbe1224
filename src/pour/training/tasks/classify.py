"""Training and retraining a classifier on a named dataset, and describing what came out."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.augment import Augment
from pour.data.loader import DeviceLoader, EpochLoader
from pour.data.splits import Splits
from pour.geometry.collapse import neural_collapse
from pour.models.card import set_class_names
from pour.models.head import find_head
from pour.models.networks.pretrained import read_weights
from pour.models.networks.registry import build_model
from pour.models.state import digest
from pour.models.tap import extract_features
from pour.training.guard import check_sound
from pour.training.loop import TrainingLog, fit
from pour.training.resume import ResumeFile

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from pour.data.classes import ClassRequest
    from pour.data.dataset import ImageDataset, ImageSplit
    from pour.data.samples import IndexedSamples
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = [
    "describe_classifier",
    "evaluation_loader",
    "resume_file",
    "train_classifier",
    "training_loader",
    "training_split",
]

_EVALUATION_BATCH = 1000
_FEW = 100


def train_classifier(
    dataset: ImageDataset,
    recipe: Recipe,
    run: Run,
    *,
    arch: str = "resnet18",
    without: ClassRequest = (),
    weights: str | Path | None = None,
    image_size: int | None = None,
    resume: Path | None = None,
    resume_seconds: float = 20.0,
) -> tuple[nn.Module, TrainingLog]:
    """Train ``arch`` on a dataset from scratch (or from ``weights``); with ``without``, the retrained reference.

    The head keeps a score for every class of the dataset, the left-out ones included.

    Args:
        dataset: what to train on.
        recipe: how.
        run: seed, device, precision, progress.
        arch: a name from :func:`pour.list_models`.
        without: classes whose images are left out, by name or index.
        weights: a file to start from, or a name of :data:`pour.models.PRETRAINED`.
        image_size: the size that images are brought to inside a network of another library.
        resume: where to keep the state of an unfinished run; the same call goes on from there.
        resume_seconds: how often, at most, that state is written.
    """
    split = training_split(dataset, without)
    height, _, channels = dataset.image_shape
    with run.seeded():
        model = build_model(
            arch, dataset.num_classes, in_channels=channels, image_size=height, resize=image_size, weights=weights
        )
    set_class_names(model, dataset.classes)
    file = None
    if resume is not None:
        start: dict[str, object] = {"weights": None if weights is None else digest(read_weights(weights))}
        if image_size is not None:
            start["image_size"] = image_size
        file = resume_file(resume, resume_seconds, split, recipe, run, arch=arch, **start)
    words = f"training {arch} on {dataset.name}"
    log = fit(model, training_loader(dataset, split, recipe, run), recipe, run, resume=file, description=words)
    few = split.take(np.arange(min(_FEW, len(split))))
    check_sound(model, next(iter(evaluation_loader(few, run)))[0])
    return model, log


def training_loader(dataset: ImageDataset, split: ImageSplit, recipe: Recipe, run: Run) -> DeviceLoader:
    """Shuffled batches of a split, augmented where the recipe says so."""
    augment = Augment.for_images(dataset.image_shape[0], flip=dataset.info.mirrors) if recipe.augment else None
    return DeviceLoader(
        split.images,
        split.labels,
        batch_size=recipe.batch_size,
        device=run.torch_device,
        seed=run.seed,
        shuffle=True,
        augment=augment,
        drop_last=True,
    )


def resume_file(
    path: Path, seconds: float, split: ImageSplit, recipe: Recipe, run: Run, **identity: object
) -> ResumeFile:
    """The file of an unfinished run, which only a run of the same data, recipe, seed and ``identity`` takes up."""
    whole = {
        **identity,
        "data": _images_digest(split),
        "recipe": asdict(recipe),
        "seed": run.seed,
        "precision": run.precision,
    }
    return ResumeFile(path=path, fingerprint=json.dumps(whole, sort_keys=True), seconds=seconds)


def evaluation_loader(split: IndexedSamples, run: Run) -> EpochLoader:
    """The images of a split in their order, un-augmented."""
    return split.batches(_EVALUATION_BATCH, run.torch_device)


def describe_classifier(
    model: nn.Module, dataset: ImageDataset, run: Run, *, without: ClassRequest = ()
) -> dict[str, Any]:
    """Accuracies on every split and Neural Collapse on the training images, ready for JSON.

    Images of classes that were left out of training count under ``forgotten`` and are absent from the rest.
    """
    forgotten = _resolve(dataset, without)
    accuracy: dict[str, float] = {}
    collapse: dict[str, float | None] = {}
    for name, split in dataset.splits.items():
        seen = extract_features(model, evaluation_loader(split, run), device=run.torch_device)
        right = seen.scores.argmax(dim=1) == seen.labels
        left_out = torch.isin(seen.labels, torch.tensor(forgotten, device=seen.labels.device))
        accuracy[name] = right[~left_out].double().mean().item()
        if forgotten:
            accuracy[f"{name}_forgotten"] = right[left_out].double().mean().item()
        if name == "train":
            head = find_head(model)
            kept = ~left_out
            weight = head.weight.to(seen.features.device)
            bias = None if head.bias is None else head.bias.to(weight.device)
            collapse = neural_collapse(seen.features[kept], seen.labels[kept], weight, bias).to_dict()
    return {"accuracy": accuracy, "neural_collapse": collapse}


def _resolve(dataset: ImageDataset, without: ClassRequest) -> tuple[int, ...]:
    return Splits.of(dataset, without).forgotten if without not in ((), []) else ()


def training_split(dataset: ImageDataset, without: ClassRequest) -> ImageSplit:
    """The training images, without those of the classes that are left out."""
    split = dataset.splits["train"]
    return split.without(_resolve(dataset, without)) if without not in ((), []) else split


def _images_digest(split: ImageSplit) -> str:
    """What identifies the images and labels of a split."""
    total = hashlib.blake2b(split.images.tobytes(), digest_size=16)
    total.update(split.labels.tobytes())
    return total.hexdigest()
