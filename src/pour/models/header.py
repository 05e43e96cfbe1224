"""The header of a checkpoint, which pour writes into the metadata of a safetensors file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pour._records import decode, encode, record
from pour.errors import UsageError
from pour.models.card import Architecture
from pour.models.history import HistoryEntry
from pour.models.projecting.projected_head import ForgottenLogit
from pour.models.state import unreadable

if TYPE_CHECKING:
    import os

__all__ = ["Header", "Projection", "header_metadata", "read_header", "sort_metadata"]

_HEADER = "pour"
_SEAL = "pour_sha256"


@record
@dataclass(frozen=True, kw_only=True)
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
@dataclass(frozen=True, kw_only=True)
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
    format_version: int = 1


def header_metadata(header: Header) -> dict[str, str]:
    """Return the metadata of a safetensors file with this header and its seal."""
    text = encode(header, sort_keys=True)
    return {"format": "pt", _HEADER: text, _SEAL: _seal(text)}


def read_header(path: str | os.PathLike[str]) -> Header | None:
    """Return the header of a checkpoint without reading its weights, or None for a file that pour did not write.

    Raises:
        UsageError: The file is missing, is no safetensors file, or its header was altered.
    """
    source = Path(path)
    if not source.is_file():
        raise UsageError(f"There is no file {source}; check the path.")
    try:
        with safe_open(source, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
    except (SafetensorError, OSError, ValueError) as error:
        raise unreadable(source, error) from error
    text = metadata.get(_HEADER)
    if text is None:
        return None
    if metadata.get(_SEAL) != _seal(text):
        raise UsageError(f"{source} was altered after it was saved: its history does not match its digest.")
    return decode(Header, text, source)


def sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file, whose order is random, so that equal models give equal bytes."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        fields: dict[str, Any] = json.loads(file.read(size))
        fields["__metadata__"] = dict(sorted(fields["__metadata__"].items()))
        text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= size:
            file.seek(8)
            file.write(text.ljust(size))


def _seal(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
