"""Train an image encoder to match the texts of its classes, and make a zero-shot classifier of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F

from pour.data.dataset import ImageDataset, ImageSplit, join_splits
from pour.data.digest import split_digest
from pour.data.registry import load_dataset
from pour.errors import UsageError, warn
from pour.models.card import Architecture
from pour.models.clip.load_pretrained import load_dual
from pour.models.clip.texts import CAPTIONS, PROMPTS, TextTable, minilm_encoder, prompt_embeddings
from pour.models.clip.zero_shot import ZeroShotClassifier, zero_shot_classifier
from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.networks.registry import rebuild
from pour.models.output import scores_of
from pour.models.projecting.fold import fold
from pour.models.state import tensor_digest, write_tensors
from pour.models.tap import device_of, extract_features, to_unit
from pour.training.loop import TrainingLog
from pour.training.tasks.classify import Images
from pour.training.tasks.task import register_task

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.models.clip.texts import TextEncoder
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["REQUEST_PROMPTS", "Match", "read_names"]

REQUEST_PROMPTS = ("a photo of a {}.",)
"""Templates for pretrained encoders, and for the texts of a request to forget."""


# The folded model is compared with the projected model on this number of images.
_FOLD_IMAGES = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class TextDataset(ImageDataset):
    """Images with the names that texts use for their classes."""

    transfer: ImageDataset | None = None
    """Dataset of other classes, which an encoder scores with their own texts."""


@register_task
@dataclass(frozen=True, kw_only=True)
class Match(Images):
    """Match images with the texts of their classes.

    The loss is CLIP's with the classes of the dataset in place of the batch: cross-entropy of the scaled cosines
    between an image and one caption per class, averaged over the templates of captions, with a learned scale. The text
    encoder is frozen, so that its embeddings are computed once. The finished classifier uses other templates.
    """

    name: ClassVar[str] = "match"
    metrics: ClassVar[tuple[str, ...]] = ("acc_r", "acc_f", "rus_o")
    knows_unseen: ClassVar[bool] = True

    text: str | None = None
    """File of text embeddings, by default the sentence encoder. A pretrained network has its own text encoder."""
    names: str | None = None
    """File with a line CLASS NAME for each class whose name in texts is another one."""
    transfer: str | None = None
    """Another dataset, whose classes are scored with their own texts before and after forgetting."""
    test_on_all: bool = False
    """Whether all images are test images, for a pretrained encoder and a folder without test images."""

    @classmethod
    def accepts(cls, data: str, arch: str | None) -> bool:
        return arch is not None and _is_trained(arch)

    def defaults(self, data: str) -> tuple[str, str]:
        return ("clip-resnet-digits", "digits") if data == "digits" else ("clip-resnet18", "fast")

    def load(self, name: str, root: str | Path | None = None, *, download: bool = False) -> ImageDataset:
        """Open a dataset and the transfer dataset, with the names of classes that texts use."""
        names = {} if self.names is None else read_names(Path(self.names))
        dataset = load_dataset(name, root, download=download)
        transfer = None if self.transfer is None else load_dataset(self.transfer, root, download=download)
        missing = [name for name in names if name not in dataset.classes]
        if missing:
            raise UsageError(f"{self.names} names the class {missing[0]!r}, which {dataset.name} does not have.")
        classes = tuple(names.get(name, name) for name in dataset.classes)
        splits = dict(dataset.splits)
        if self.test_on_all:
            splits["test"] = join_splits(list(splits.values()))
        return TextDataset(name=dataset.name, classes=classes, splits=splits, info=dataset.info, transfer=transfer)

    def digest(self, dataset: ImageDataset) -> str:
        transfer = getattr(dataset, "transfer", None)
        return super().digest(dataset) + ("" if transfer is None else split_digest(transfer.splits["test"])[:32])

    def request_data(
        self, arch: str, dataset: ImageDataset, classes: tuple[int, ...], train: ImageSplit
    ) -> dict[str, Any]:
        data = super().request_data(arch, dataset, classes, train)
        return {**data, "encode": self.text_encoder(arch)}

    def identity(self) -> dict[str, Any]:
        names = {} if self.names is None else {"names": dict(read_names(Path(self.names)))}
        return {
            "text": "sentence encoder" if self.text is None else tensor_digest(TextTable.load(self.text).embeddings),
            "transfer": self.transfer,
            **names,
            **({"test_on_all": True} if self.test_on_all else {}),
        }

    def readings(
        self,
        arch: str,
        dataset: ImageDataset,
        classes: tuple[int, ...],
        models: Mapping[str, nn.Module],
        run: Run,
    ) -> dict[str, dict[str, float]]:
        """Return the accuracies of both models on each class and on the transfer dataset, and the error of a fold."""
        test = dataset.splits["test"]
        transfer = getattr(dataset, "transfer", None)
        readings: dict[str, dict[str, float]] = {}
        for role, suffix in (("original", "_before"), ("unlearned", "")):
            output = extract_features(models[role], self.batches(test, run), device=run.torch_device)
            right = output.scores.argmax(dim=1) == output.labels
            forgotten = self.belongs(output.labels, classes)
            readings[f"acc_f{suffix}"], readings[f"acc_r{suffix}"] = _share(right[forgotten]), _share(right[~forgotten])
            for label, name in enumerate(dataset.classes):
                readings[f"acc.{name}{suffix}"] = _share(right[output.labels == label])
            if transfer is not None:
                batches = self.batches(transfer.splits["test"], run)
                output = extract_features(models[role], batches, device=run.torch_device)
                text = prompt_embeddings(self.text_encoder(arch), transfer.classes, self.prompts(arch))
                answers = (output.features @ text.T.to(output.features)).argmax(dim=1)
                readings[f"transfer{suffix}"] = _share(answers == output.labels)
        # A class that was never recognised loses nothing.
        before = readings["acc_f_before"]["value"]
        readings["fall"] = {"value": 1 - readings["acc_f"]["value"] / before if before else 0.0}
        images = to_unit(next(iter(self.batches(test, run)))[0][:_FOLD_IMAGES])
        try:
            readings["fold_gap"] = {"value": _fold_gap(models["unlearned"], images)}
        except UsageError as error:
            warn(str(error))
        return readings

    def is_quick(self, arch: str) -> bool:
        return not _is_trained(arch)

    @staticmethod
    def prompts(arch: str) -> tuple[str, ...]:
        """Return the templates that images are scored against."""
        return PROMPTS if _is_trained(arch) else REQUEST_PROMPTS

    def text_encoder(self, arch: str) -> TextEncoder:
        """Return the text encoder that belongs to the network `arch`."""
        if not _is_trained(arch):
            return _pretrained(arch)[1]
        return minilm_encoder() if self.text is None else TextTable.load(self.text)

    def build(self, arch: str, dataset: ImageDataset) -> ZeroShotClassifier:
        """Return a pretrained classifier, or a new encoder with the captions that it trains on as texts."""
        encode = self.text_encoder(arch)
        if not _is_trained(arch):
            text = prompt_embeddings(encode, dataset.classes, self.prompts(arch))
            return zero_shot_classifier(_pretrained(arch)[0], text, class_names=dataset.classes)
        height, _, channels = dataset.image_shape
        text = prompt_embeddings(encode, dataset.classes, CAPTIONS, average=False)
        sizes = {"num_classes": dataset.num_classes, "in_channels": channels, "image_size": height}
        model = rebuild(Architecture(arch, {**sizes, "text_width": text.shape[2]}))
        if not isinstance(model, ZeroShotClassifier):
            raise UsageError(f"{arch} is no encoder for text embeddings; take one that starts with clip-.")
        model.set_text(text.flatten(0, 1))
        return model

    def loss(self, samples: ImageSplit, run: Run) -> Callable[..., Tensor]:
        return _caption_loss

    def train_quickly(
        self, dataset: ImageDataset, recipe: Recipe, run: Run, arch: str, without: ClassRequest
    ) -> tuple[nn.Module, TrainingLog]:
        """Return a pretrained classifier as it is."""
        return self.build(arch, dataset), TrainingLog()

    def finish(self, model: nn.Module, dataset: ImageDataset, arch: str) -> nn.Module:
        """Let the classifier score images against other prompts than those of the training."""
        text = prompt_embeddings(self.text_encoder(arch), dataset.classes, self.prompts(arch))
        model.set_text(text, class_names=dataset.classes)  # type: ignore[operator]
        return model.eval()

    def save(self, model: nn.Module, path: Path, dataset: ImageDataset, arch: str) -> None:
        if _is_trained(arch):
            super().save(model, path, dataset, arch)
        else:
            # The encoder is in its own files.
            write_tensors({"text": model.text}, path)  # type: ignore[dict-item]

    def load_model(self, path: Path, dataset: ImageDataset, arch: str) -> nn.Module:
        return super().load_model(path, dataset, arch) if _is_trained(arch) else self.build(arch, dataset)


def _is_trained(arch: str) -> bool:
    """Return whether the image encoder `arch` is trained here; the others are pretrained."""
    return arch.startswith("clip-")


_pretrained = lru_cache(maxsize=1)(load_dual)


def _share(right: Tensor) -> dict[str, float]:
    """Return the share of right answers and the number of answers."""
    return {"value": right.double().mean().item(), "n": len(right)} if len(right) else {"value": 0.0, "n": 0}


def _fold_gap(projected: nn.Module, images: Tensor) -> float:
    """Return the largest difference between the cosines of a projected model and of the folded model."""
    folded = fold(projected)
    with evaluating(projected), evaluating(folded), torch.inference_mode():
        first, second = (scores_of(model(images.to(device_of(model)))) for model in (projected, folded))
    scale = find_head(folded).layer.log_scale.exp()
    return float(((first - second).abs().max() / scale).item())


def _caption_loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    scores = scores_of(network(to_unit(images))).view(len(labels), len(CAPTIONS), -1)
    targets = labels.unsqueeze(1).expand(-1, len(CAPTIONS))
    return F.cross_entropy(scores.flatten(0, 1), targets.reshape(-1))


def read_names(file: Path) -> Mapping[str, str]:
    """Return the names of classes in a file with lines of a class, white space and its name."""
    if not file.is_file():
        raise UsageError(f"There is no file of class names {file}; check the path.")
    names: dict[str, str] = {}
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is no text in UTF-8 ({error}); save the class names in that encoding.") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        parts = line.split(maxsplit=1)
        if len(parts) < 2:
            raise UsageError(f"Line {number} of {file} has no name after {parts[0]!r}; write CLASS NAME on each line.")
        names[parts[0]] = parts[1].strip()
    return names
