"""The classifiers of the zero-shot experiment: trained against a frozen sentence encoder, or pretrained."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pour._io import write_text
from pour._provenance import circumstances
from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.digest import split_digest
from pour.data.registry import load_dataset
from pour.errors import UsageError
from pour.models.checkpoint import load, save
from pour.models.clip.load_pretrained import load_dual
from pour.models.clip.texts import CAPTIONS, PROMPTS, TextTable, minilm_encoder, prompt_embeddings
from pour.models.clip.zero_shot import ZeroShotClassifier, zero_shot_classifier
from pour.models.state import digest, tensor_digest
from pour.training.run import Run
from pour.training.tasks.match import REQUEST_PROMPTS as PAPER_PROMPTS
from pour.training.tasks.match import Match

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pour.models.clip.texts import TextEncoder
    from pour.training.recipes import Recipe
    from pour.training.run import Precision

__all__ = ["PAPER_PROMPTS", "Original", "ZeroShotModels"]


@dataclass(frozen=True)
class Original:
    """A classifier before anything is forgotten."""

    model: ZeroShotClassifier
    encode: TextEncoder
    digest: str
    """SHA-256 of its weights, texts included."""


@dataclass(frozen=True, kw_only=True)
class ZeroShotModels:
    """Opens or trains the original of a seed, and the data that it is tested on."""

    out: Path
    arch: str
    data: str
    root: Path | None
    recipe: Recipe
    text: Path | None
    """A file of text embeddings; None computes them with the sentence encoder."""
    names: Mapping[str, str]
    """What classes are called in texts, where a folder's name is not it."""
    device: str | None
    precision: Precision | None
    progress: bool

    @property
    def trained(self) -> bool:
        """Whether the encoder is trained here; else it is a pretrained one."""
        return self.arch.startswith("clip-")

    @property
    def prompts(self) -> tuple[str, ...]:
        """Templates that images are scored against."""
        return PROMPTS if self.trained else PAPER_PROMPTS

    def dataset(self) -> ImageDataset:
        """The images, with the names that texts use."""
        return self.named(load_dataset(self.data, self.root))

    def named(self, dataset: ImageDataset) -> ImageDataset:
        """A dataset whose classes are called as texts call them."""
        missing = [name for name in self.names if name not in dataset.classes]
        if missing:
            raise UsageError(f"There is a name for {missing[0]!r}, which is no class of {dataset.name}.")
        classes = tuple(self.names.get(name, name) for name in dataset.classes)
        return ImageDataset(name=dataset.name, classes=classes, splits=dataset.splits, info=dataset.info)

    def tested(self, dataset: ImageDataset) -> ImageSplit:
        """What accuracy is measured on: the test images; with a pretrained encoder, all images of a plain folder."""
        ours = self.data.startswith("folder:") and set(dataset.splits) == {"train", "test"}
        if self.trained or not ours or _has_own_test(self.data):
            return dataset.splits["test"]
        parts = list(dataset.splits.values())
        return ImageSplit(
            np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts])
        )

    def open(self, seed: int, dataset: ImageDataset) -> Original:
        """The classifier of a seed; one that is trained here is trained once."""
        if not self.trained:
            encoder, encode = load_dual(self.arch)
            text = prompt_embeddings(encode, dataset.classes, self.prompts)
            return _original(zero_shot_classifier(encoder, text, class_names=dataset.classes), encode)
        encode = minilm_encoder() if self.text is None else TextTable.load(self.text)
        path = self.out / "models" / f"seed-{seed}" / "original.safetensors"
        run = Run(seed=seed, device=self.device, precision=self.precision, progress=self.progress)
        captions = prompt_embeddings(encode, dataset.classes, (*CAPTIONS, *self.prompts), average=False)
        identity = {
            "dataset": self.data,
            "architecture": self.arch,
            "recipe": json.loads(json.dumps(asdict(self.recipe))),
            "seed": seed,
            "precision": run.precision,
            "text": tensor_digest(captions),
            "data": split_digest(dataset.splits["train"]),
        }
        there = _stored(path, identity)
        if there is not None:
            return _original(there, encode)
        path.parent.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        task = Match(text=None if self.text is None else str(self.text))
        model, log = task.train(dataset, self.recipe, run, arch=self.arch, resume=path.with_suffix(".resume"))
        seconds = time.perf_counter() - started
        save(model.cpu(), path, overwrite=True)
        made = _original(model, encode)  # type: ignore[arg-type]
        write_text(path.with_suffix(".json"), json.dumps({**identity, "digest": made.digest}, indent=1))
        surroundings = {"seconds": seconds, "training": log.to_dict(), **circumstances(run.torch_device, run.precision)}
        write_text(path.with_suffix(".run.json"), json.dumps(surroundings, indent=1))
        return made


def _has_own_test(data: str) -> bool:
    from pathlib import Path

    folder = data.removeprefix("folder:").rpartition("@")[0] or data.removeprefix("folder:")
    return (Path(folder) / "test").is_dir()


def _original(model: ZeroShotClassifier, encode: TextEncoder) -> Original:
    return Original(model.eval(), encode, digest(model.state_dict()))


def _stored(path: Path, identity: Mapping[str, Any]) -> ZeroShotClassifier | None:
    try:
        stored = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if {name: stored.get(name) for name in identity} != identity:
            return None
        model = load(path)
    except (OSError, ValueError):
        # UsageError, the sentence for a damaged file, is a ValueError too: what cannot be read is trained again.
        return None
    whole = isinstance(model, ZeroShotClassifier) and digest(model.state_dict()) == stored.get("digest")
    return model if whole and isinstance(model, ZeroShotClassifier) else None
