"""Cache the features and measures of the reference models on disk for later audits."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from pour._io import atomic_path, write_text
from pour._records import decode, encode, read, record
from pour._version import __version__
from pour.auditing.features import Seen
from pour.auditing.processes import is_first_process
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch
__all__ = ["FeatureCache", "MeasureCache"]

T = TypeVar("T")

_VERSION = 3
# A changed definition of a measure needs a new version, so that no audit reads values of the old definition.
_MEASURES_VERSION = 2


@dataclass(frozen=True)
class FeatureCache:
    """Features on disk. The name of a file is a digest of weights, structure, images, precision and device."""

    folder: Path
    precision: str
    device: torch.device

    def path(self, model: str, data: str, split: str) -> Path:
        """Return the file for a model's digest and a split's digest."""
        key = f"{_VERSION}\0{model}\0{data}\0{self.precision}\0{self.device.type}"
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}-{split}.safetensors"

    def read(self, path: Path) -> Seen | None:
        """Return the output in a file, or None if the file is missing or damaged."""
        if not path.is_file():
            return None
        try:
            stored = load_file(path, device=str(self.device))
            return Seen(**{"raw": stored["features"], **stored})
        except (SafetensorError, OSError, KeyError, TypeError):
            # A cache is only a shortcut: the output is computed again and replaces the file.
            return None

    def write(self, path: Path, seen: Seen) -> None:
        """Store the output. The first process writes for all."""
        if not is_first_process():
            return
        tensors = {field.name: getattr(seen, field.name) for field in fields(seen)}
        if seen.raw is seen.features:
            del tensors["raw"]
        # A cache is only a shortcut: without the file, the next audit computes the output again.
        with contextlib.suppress(PourError), atomic_path(path) as temporary:
            save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, temporary)


@record
@dataclass(frozen=True)
class StoredMeasure:
    """File of the measure cache."""

    value: str
    """Measured values as JSON."""
    notes: tuple[str, ...]
    """Notes of the audit about values that are absent."""


@dataclass(frozen=True)
class MeasureCache:
    """Measures of reference models on disk. The name of a file is a digest of everything that decides its content."""

    folder: Path | None
    """Folder of the files. None stores nothing."""
    settings: str
    """Settings that all measures of an audit depend on."""
    notes: list[str]
    """Notes of the audit. The file contains the notes that a measure added, and reading it adds them again."""

    def recall(self, kind: type[T], name: str, sources: tuple[str | None, ...], measure: Callable[[], T]) -> T:
        """Return the stored values, or compute and store them.

        Args:
            kind: Type of the values: a record, or dictionaries and tuples of records.
            name: Name of the measure, with everything else that its values depend on.
            sources: Source of the features of each model. None is a model whose features are not stored.
            measure: Computes the values.
        """
        if self.folder is None or None in sources:
            return measure()
        key = "\0".join((f"{_MEASURES_VERSION}", __version__, name, self.settings, *map(str, sources)))
        path = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}-measures.json"
        try:
            stored = read(StoredMeasure, path)
            value = decode(kind, stored.value, path)
        except UsageError:
            # A cache is only a shortcut: a file that is missing or cannot be read is computed again.
            before = list(self.notes)
            value = measure()
            added = tuple(note for note in self.notes if note not in before)
            if is_first_process():
                with contextlib.suppress(PourError):
                    write_text(path, encode(StoredMeasure(encode(value), added)))
            return value
        self.notes.extend(note for note in stored.notes if note not in self.notes)
        return value
