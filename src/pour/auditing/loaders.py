"""Identify the samples of a loader, and report a loader that returns different samples in each pass."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from pour.data.samples import Batches

__all__ = ["loader_notes", "sample_digests"]


def sample_digests(inputs: Tensor, labels: Tensor) -> list[bytes]:
    """Return a digest of each sample of a batch, from its input and its label.

    Examples:
        >>> first, second = sample_digests(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> first == second
        False
    """
    columns = [part.detach().cpu().contiguous().reshape(len(part), -1).view(torch.uint8) for part in (inputs, labels)]
    return [hashlib.blake2b(row.numpy().tobytes()).digest() for row in torch.cat(columns, dim=1)]


def loader_notes(
    name: str, loader: Batches, digests: Iterable[bytes], count: int, first: tuple[Tensor, Tensor]
) -> list[str]:
    """Return sentences on samples that a loader omits, or that differ between two passes.

    Args:
        name: Name of the split.
        loader: Loader of the split.
        digests: Digests of the samples of a complete pass.
        count: Number of these samples.
        first: The first samples of another pass.
    """
    notes = []
    dataset = getattr(loader, "dataset", ())
    left_out = len(dataset) - count if hasattr(dataset, "__len__") else 0
    if left_out > 0:
        notes.append(
            f"the {name} loader returned {count:,} of the {len(dataset):,} samples of its dataset, as with drop_last; "
            "the others are not audited"
        )
    if len(set(sample_digests(*first)).difference(digests)) > max(0, left_out):
        notes.append(
            f"the {name} loader returns other inputs in each pass, as random augmentation does; all models had the "
            "inputs of one pass, and another audit has other inputs"
        )
    return notes
