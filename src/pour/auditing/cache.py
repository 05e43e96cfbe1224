"""What the reference models gave, kept on disk: features and measures, which the next audit need not make again."""

from __future__ import annotations

import contextlib
import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pour._io import atomic_path, write_text
from pour._version import __version__
from pour.auditing.processes import is_first_process
from pour.errors import PourError
from pour.models.tap import Features

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch
    from torch import Tensor

    from pour.data.samples import IndexedSamples

__all__ = ["FeatureCache", "MeasureCache", "split_digest"]

T = TypeVar("T")

_VERSION = 2
# To be raised whenever a measure's definition changes, so that no audit reads what an older one measured.
_MEASURES_VERSION = 1
_IMAGES_PER_PART = 4096


def split_digest(split: IndexedSamples) -> str:
    """SHA-256 over the images, part by part so that all cores help, and the labels of a split."""
    images, labels = np.ascontiguousarray(split.images), np.ascontiguousarray(split.labels)
    parts = [images[start : start + _IMAGES_PER_PART].data for start in range(0, len(images), _IMAGES_PER_PART)]
    total = hashlib.sha256(f"{images.shape}".encode())
    with ThreadPoolExecutor() as pool:
        for part in pool.map(hashlib.sha256, parts):
            total.update(part.digest())
    total.update(labels.data)
    return total.hexdigest()


@dataclass(frozen=True)
class FeatureCache:
    """Files named by everything that decides their content: weights, structure, images, precision and device."""

    folder: Path
    precision: str
    device: torch.device

    def path(self, model: str, data: str, split: str) -> Path:
        """The file for a model's digest and a split's digest."""
        key = f"{_VERSION}\0{model}\0{data}\0{self.precision}\0{self.device.type}"
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}-{split}.safetensors"

    def read(self, path: Path, labels: Tensor) -> Features | None:
        """The features in a file, or None where it is missing, cut short or of another number of images."""
        if not path.is_file():
            return None
        try:
            stored = load_file(path, device=str(self.device))
            features, scores = stored["features"], stored["scores"]
        except (SafetensorError, OSError, KeyError):
            # A cache is only a shortcut: what cannot be read is tapped again, and the file replaced.
            return None
        if not len(features) == len(scores) == len(labels):
            return None
        return Features(features=features, raw=stored.get("raw", features), scores=scores, labels=labels)

    def write(self, path: Path, seen: Features) -> None:
        """Keep the features; the first process writes for all."""
        if not is_first_process():
            return
        tensors = {"features": seen.features, "scores": seen.scores}
        if seen.raw is not seen.features:
            tensors["raw"] = seen.raw
        # A cache is only a shortcut: where it cannot be written, the next audit taps again.
        with contextlib.suppress(PourError), atomic_path(path) as temporary:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)


@dataclass(frozen=True)
class MeasureCache:
    """Measures of reference models, by everything that decides them; computing one again would give the same."""

    folder: Path | None
    """None keeps nothing."""
    settings: str
    """What all measures of an audit depend on."""
    notes: list[str]
    """Where measuring says what it left out; what it said is kept with the measures."""

    def recall(
        self, what: str, sources: tuple[str | None, ...], measure: Callable[[], Any], read: Callable[[Any], T]
    ) -> T:
        """What was measured before, else what ``measure`` gives now, as plain JSON data; ``read`` makes sense of it.

        Args:
            what: the measure, and whatever else it depends on.
            sources: what the features come from, one for each model; None is a model whose features are not kept.
            measure: gives plain data: dictionaries, lists, numbers and strings.
            read: of those.
        """
        if self.folder is None or None in sources:
            return read(measure())
        key = "\0".join((f"{_MEASURES_VERSION}", __version__, what, self.settings, *map(str, sources)))
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}-measures.json"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            found = read(stored["value"])
            said = [str(note) for note in stored["notes"]]
        except (OSError, ValueError, KeyError, TypeError):
            # A cache is only a shortcut: what is missing or cannot be read is measured again.
            before = list(self.notes)
            value = measure()
            said = [note for note in self.notes if note not in before]
            if is_first_process():
                with contextlib.suppress(PourError):
                    write_text(path, json.dumps({"value": value, "notes": said}))
            return read(value)
        self.notes.extend(note for note in said if note not in self.notes)
        return found
