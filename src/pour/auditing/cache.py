"""Cache the features and measures of the reference models on disk for later audits."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file

from pour._io import write_text
from pour._records import decode, encode, read, record
from pour._version import __version__
from pour.auditing.features import Seen
from pour.auditing.processes import is_first_process
from pour.errors import PourError, UsageError
from pour.models.state import write_tensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import torch
__all__ = ["MeasureCache", "output_file", "read_output", "write_output"]

T = TypeVar("T")

_VERSION = 3
# A changed definition of a measure needs a new version, so that no audit reads values of the old definition.
_MEASURES_VERSION = 2


def output_file(folder: Path, key: tuple[object, ...], split: str) -> Path:
    """Return the file for the output of a model on a split.

    Args:
        folder: Folder of the cache.
        key: Weights, structure, samples, precision, device and everything else that decides the output.
        split: Name of the split.
    """
    return _file(folder, (_VERSION, *key), f"{split}.safetensors")


def _file(folder: Path, key: tuple[object, ...], ending: str) -> Path:
    """Return the file whose name is a digest of everything that decides its content."""
    text = "\0".join(map(str, key))
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}-{ending}"


def read_output(path: Path, device: torch.device) -> Seen | None:
    """Return the output in a file, or None if the file is missing or damaged."""
    try:
        stored = load_file(path, device=str(device))
        return Seen(**{"raw": stored["features"], **stored})
    except (SafetensorError, OSError, KeyError, TypeError):
        # A cache is only a shortcut: the output is computed again and replaces the file.
        return None


def write_output(path: Path, output: Seen) -> None:
    """Store the output. The first process writes for all."""
    if not is_first_process():
        return
    tensors = {field.name: getattr(output, field.name) for field in fields(output)}
    if output.raw is output.features:
        del tensors["raw"]
    # A cache is only a shortcut: without the file, the next audit computes the output again.
    with contextlib.suppress(PourError):
        write_tensors(tensors, path)


@record(kw_only=False)
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
        path = _file(self.folder, (_MEASURES_VERSION, __version__, name, self.settings, *sources), "measures.json")
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
