"""Training an image encoder against a frozen text encoder, and making a zero-shot classifier of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F

from pour.errors import UsageError
from pour.models.card import Architecture
from pour.models.clip.texts import CAPTIONS, PROMPTS, prompt_embeddings
from pour.models.clip.zero_shot import ZeroShotClassifier
from pour.models.networks.registry import rebuild
from pour.models.output import scores_of
from pour.models.state import tensor_digest
from pour.models.tap import to_unit
from pour.training.loop import TrainingLog, fit
from pour.training.tasks.classify import resume_file, training_loader, training_split

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.data.dataset import ImageDataset
    from pour.models.clip.texts import TextEncoder
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["is_zero_shot", "train_zero_shot"]


def is_zero_shot(arch: str | None) -> bool:
    """Whether an architecture is an image encoder for text embeddings.

    Example:
        >>> is_zero_shot("clip-resnet18"), is_zero_shot("resnet18")
        (True, False)
    """
    return arch is not None and arch.startswith("clip-")


def train_zero_shot(
    dataset: ImageDataset,
    encode: TextEncoder,
    recipe: Recipe,
    run: Run,
    *,
    arch: str = "clip-resnet18",
    captions: Sequence[str] = CAPTIONS,
    prompts: Sequence[str] = PROMPTS,
    without: ClassRequest = (),
    resume: Path | None = None,
    resume_seconds: float = 20.0,
) -> tuple[ZeroShotClassifier, TrainingLog]:
    """Train an image encoder so that an image lies near the captions of its class; then score it on other prompts.

    The loss is CLIP's with the dataset's classes in place of the batch: cross-entropy of the scaled cosines between an
    image and one caption per class, averaged over the captions' templates, with a learned scale. The text encoder is
    frozen, so its embeddings are computed once.

    Args:
        dataset: what to train on; its class names, underscores as spaces, go into the captions.
        encode: the text encoder.
        recipe: how.
        run: seed, device, precision, progress.
        arch: a name of :func:`pour.list_models` that starts with ``clip-``.
        captions: templates of the training captions.
        prompts: templates of the texts that the finished classifier scores against.
        without: classes whose images are left out, by name or index.
        resume: where to keep the state of an unfinished run; the same call goes on from there.
        resume_seconds: how often, at most, that state is written.
    """
    if not is_zero_shot(arch):
        raise UsageError(f"{arch} is no encoder for text embeddings; take one that starts with clip-.")
    split = training_split(dataset, without)
    height, _, channels = dataset.image_shape
    text = prompt_embeddings(encode, dataset.classes, captions, average=False)
    with run.seeded():
        model = rebuild(
            Architecture(
                arch,
                {
                    "num_classes": dataset.num_classes,
                    "in_channels": channels,
                    "image_size": height,
                    "text_width": text.shape[2],
                },
            )
        )
    if not isinstance(model, ZeroShotClassifier):
        raise UsageError(f"{arch} is no encoder for text embeddings; take one that starts with clip-.")
    model.set_text(text.flatten(0, 1))
    file = None
    if resume is not None:
        file = resume_file(resume, resume_seconds, split, recipe, run, arch=arch, text=tensor_digest(text))

    def caption_loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        scores = scores_of(network(to_unit(images))).view(len(labels), len(captions), -1)
        wanted = labels.unsqueeze(1).expand(-1, len(captions))
        return F.cross_entropy(scores.flatten(0, 1), wanted.reshape(-1))

    log = fit(
        model,
        training_loader(dataset, split, recipe, run),
        recipe,
        run,
        objective=caption_loss,
        resume=file,
        description=f"training {arch} on {dataset.name}",
    )
    model.set_text(prompt_embeddings(encode, dataset.classes, prompts), class_names=dataset.classes)
    return model.eval(), log
