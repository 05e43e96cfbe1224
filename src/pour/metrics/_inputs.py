"""Checks of features, scores and labels that the metrics share."""

from collections.abc import Iterable
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import double_blocks


def to_float64(values: Tensor) -> Tensor:
    """Return `values` in float64, on the CPU if their device has no float64 (Apple's mps)."""
    if values.device.type == "mps":
        values = values.cpu()
    return values.detach().to(torch.float64)


def as_rows(features: Tensor, name: str) -> Tensor:
    """Return `features` as a matrix, one row per sample; feature maps (n, c, h, w) are flattened."""
    if not isinstance(features, Tensor):
        raise UsageError(f"{name} must be a tensor of shape (n, d), got {type(features).__name__}.")
    if features.ndim < 2 or features.shape[0] == 0 or features.shape[1:].numel() == 0:
        raise UsageError(
            f"{name} must have shape (n, d) with at least one row and one column, got {tuple(features.shape)}."
        )
    if not features.is_floating_point():
        raise UsageError(f"{name} must contain floating-point numbers, got {features.dtype}.")
    return features.flatten(1)


def same_rows(x: Tensor, y: Tensor, names: tuple[str, str]) -> None:
    """Raise UsageError for two matrices of different samples or on different devices."""
    if x.shape[0] != y.shape[0]:
        raise UsageError(
            f"{names[0]} has {x.shape[0]} rows and {names[1]} has {y.shape[0]}: "
            "both must contain the same samples in the same order."
        )
    if x.device != y.device:
        raise UsageError(f"{names[0]} is on {x.device} and {names[1]} on {y.device}: move them to one device.")


def finite_rows(features: Tensor, name: str) -> Tensor:
    """Return `features` as a matrix, on the CPU if their device has no float64.

    Raise UsageError for NaN and infinite values.
    """
    rows = as_rows(features, name).detach()
    if rows.device.type == "mps":
        rows = rows.cpu()
    broken = sum(int((~torch.isfinite(block)).any(dim=1).sum()) for block in double_blocks(rows))
    if broken:
        raise UsageError(
            f"{name} contains NaN or infinite values in {broken} of {rows.shape[0]} rows: "
            "check the model that produced them."
        )
    return rows


def check_labels(labels: Tensor, rows: Tensor, name: str) -> Tensor:
    """Return integer class labels, one per row, on the device of `rows`."""
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex() or labels.ndim != 1:
        raise UsageError(f"{name} must be a 1-D tensor of integer class indices.")
    if labels.shape[0] != rows.shape[0]:
        raise UsageError(f"{name} has {labels.shape[0]} entries for {rows.shape[0]} samples: pass one per sample.")
    return labels.to(device=rows.device, dtype=torch.int64)


def class_tuple(classes: int | Iterable[int]) -> tuple[int, ...]:
    """Return the forgotten classes as sorted distinct indices."""
    # Arrays and tensors count as lists, although one with a single entry is an index too.
    plain = getattr(classes, "tolist", lambda: classes)()
    entries = [plain] if isinstance(plain, str | SupportsIndex) else list(plain)
    indices = [index(c) for c in entries if isinstance(c, SupportsIndex)]
    if len(indices) < len(entries):
        raise UsageError(f"classes are indices, not {classes!r}.")
    listed = sorted(set(indices))
    if not listed:
        raise UsageError("classes is empty: name at least one forgotten class.")
    if listed[0] < 0:
        raise UsageError(f"classes must be indices from 0 up, got {listed[0]}.")
    return tuple(listed)


def is_forgotten(labels: Tensor, classes: tuple[int, ...]) -> Tensor:
    """Return for every label whether its class is a forgotten class, (n,) booleans."""
    return torch.isin(labels, torch.tensor(classes, device=labels.device, dtype=labels.dtype))


def two_splits(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Check a training and a test split of one model's features: rows and int64 labels on one device."""
    train, train_labels = _labelled_rows(train_features, train_labels, "train")
    test, test_labels = _labelled_rows(test_features, test_labels, "test")
    if train.shape[1] != test.shape[1] or train.device != test.device:
        raise UsageError(
            f"train_features ({train.shape[1]} columns, {train.device}) and test_features ({test.shape[1]} columns, "
            f"{test.device}) must be features of the same model on one device."
        )
    return train, train_labels, test, test_labels


def _labelled_rows(features: Tensor, labels: Tensor, split: str) -> tuple[Tensor, Tensor]:
    rows = finite_rows(features, f"{split}_features")
    labels = check_labels(labels, rows, f"{split}_labels")
    if int(labels.min()) < 0:
        raise UsageError(f"{split}_labels must be class indices from 0 up, got {int(labels.min())}.")
    return rows, labels
