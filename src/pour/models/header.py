"""The header of a checkpoint, which pour writes into the metadata of a safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from safetensors.torch import save_file

from pour._io import existing_file
from pour._records import decode, encode, record
from pour.errors import UsageError
from pour.models.card import Architecture, Training
from pour.models.history import HistoryEntry
from pour.models.projecting.projected_head import ForgottenLogit
from pour.models.state import open_safetensors

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from torch import Tensor

__all__ = ["Header", "Projection", "read_header", "write_file"]

_HEADER = "pour"
_SEAL = "pour_sha256"


@record()
class Projection:
    """A projector in front of a head, or behind the layer of an image embedding."""

    head: str
    """Dotted name of the head or of the layer."""
    rank: int
    forgotten: tuple[int, ...]
    """Indices of the forgotten classes."""
    logit: ForgottenLogit
    behind: bool = False
    """Whether the projector works on the layer's output."""


@record(version="format_version")
class Header:
    """Description of the model in a checkpoint."""

    architecture: Architecture | None
    class_names: tuple[str, ...] | None
    history: tuple[HistoryEntry, ...]
    projections: tuple[Projection, ...]
    """Projectors of the model; none for an original or a folded model."""
    aliases: Mapping[str, str]
    """For each tied tensor that is not stored, the name of the stored tensor with the same memory."""
    digest: str
    """SHA-256 of the state dict."""
    pour_version: str
    head: str | None = None
    """Dotted name of the head, if the model's card has it."""
    training: Training | None = None
    """Record of the training of the original, if pour trained it."""
    format_version: int = 1


def write_file(path: Path, tensors: dict[str, Tensor], header: Header) -> None:
    """Write a safetensors file with this header and its digest. The files of equal models have equal bytes."""
    text = encode(header, sort_keys=True)
    save_file(tensors, path, metadata={"format": "pt", _HEADER: text, _SEAL: _seal(text)})
    # safetensors writes the metadata in a random order.
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        fields: dict[str, Any] = json.loads(file.read(size))
        fields["__metadata__"] = dict(sorted(fields["__metadata__"].items()))
        content = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        if len(content) <= size:
            file.seek(8)
            file.write(content.ljust(size))


def read_header(path: str | os.PathLike[str]) -> Header | None:
    """Return the header of a checkpoint without reading its weights, or None for a file that pour did not write.

    Raises:
        UsageError: The file is missing, is no safetensors file, or its header was altered.
    """
    source = existing_file(path)
    with open_safetensors(source) as file:
        metadata: dict[str, str] = file.metadata() or {}
    text = metadata.get(_HEADER)
    if text is None:
        return None
    if metadata.get(_SEAL) != _seal(text):
        raise UsageError(f"{source} was altered after it was saved: its history does not match its digest.")
    return decode(Header, text, source)


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
