"""CIFAR-10 and CIFAR-100: the official archives and folders, one `.npz`, or a folder of mosaics."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.archives import check_digest, read_members
from pour.data.formats.mosaic import is_mosaic, read_class_names, read_mosaic
from pour.data.formats.npz import read_npz_splits
from pour.data.formats.pickles import load_plain
from pour.data.info import DatasetInfo, official
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["CIFAR10", "CIFAR100", "CifarFormat", "find_cifar", "read_cifar"]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class CifarFormat:
    """Files of one of the two datasets, from `cifar.toml`."""

    info: DatasetInfo
    places: Sequence[str]
    """Names of its files and folders, the preferred one first."""
    train_files: Sequence[str]
    test_files: Sequence[str]
    label_key: str
    """Key of the labels in the python files."""
    label_bytes: int
    """Number of label bytes before each image in the binary files. The last one is the label."""
    train_size: int = 50_000
    test_size: int = 10_000
    digests: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the official archives by file name."""


_LAYOUTS: dict[str, Any] = tomllib.loads((files("pour.data.formats") / "cifar.toml").read_text(encoding="utf-8"))
CIFAR10, CIFAR100 = (CifarFormat(info=official(name), **layout) for name, layout in _LAYOUTS.items())


def find_cifar(root: Path, cifar: CifarFormat) -> Path | None:
    """Return the first file or folder under `root` that contains the dataset, `root` itself included."""
    named = (folder / place for folder in (root, root / cifar.info.name) for place in cifar.places)
    return next((path for path in (root, *named) if _kind(path, cifar)), None)


def read_cifar(path: Path, cifar: CifarFormat) -> ImageDataset:
    """Return the dataset stored at `path`, in any of the known forms.

    Raises:
        UsageError: The dataset is incomplete, altered or of the wrong size, or contains pickled objects other than
            arrays and plain data.
    """
    kind, stored = _kind(path, cifar), None
    if kind is None:
        raise UsageError(f"{path} does not contain {cifar.info.name}: expected one of {', '.join(cifar.places)}.")
    if kind == "npz":
        splits, stored = read_npz_splits(path)
    elif kind == "mosaic":
        splits, stored = read_mosaic(path), read_class_names(path)
    else:
        if path.name in cifar.digests and path.is_file():
            check_digest(path, cifar.digests[path.name])
        splits = _read_official(path, cifar, kind)
    dataset = ImageDataset(name=cifar.info.name, classes=stored or cifar.info.classes, splits=splits, info=cifar.info)
    # Mosaics and npz files can have any images.
    expected = (_SIDE, _SIDE, 3), len(cifar.info.classes)
    if (dataset.image_shape, dataset.num_classes) != expected:
        shape, count = " x ".join(map(str, dataset.image_shape)), dataset.num_classes
        raise UsageError(
            f"{path} does not contain {cifar.info.name}: its images are {shape} in {count} classes, not 32 x 32 x 3 in "
            f"{expected[1]}; use the name of the dataset that it contains."
        )
    return dataset


def _kind(path: Path, cifar: CifarFormat) -> Literal["npz", "mosaic", "python", "binary"] | None:
    first = cifar.train_files[0]
    if path.is_file():
        if path.suffix == ".npz":
            return "npz"
        if path.suffix in (".gz", ".tgz", ".tar"):
            return "binary" if "binary" in path.name else "python"
    elif is_mosaic(path):
        return "mosaic"
    elif (path / first).is_file():
        return "python"
    elif (path / f"{first}.bin").is_file():
        return "binary"
    return None


def _read_official(path: Path, cifar: CifarFormat, kind: Literal["python", "binary"]) -> dict[str, ImageSplit]:
    end = ".bin" if kind == "binary" else ""
    read_batch = _binary_batch if kind == "binary" else _python_batch
    files = {
        "train": [name + end for name in cifar.train_files],
        "test": [name + end for name in cifar.test_files],
    }
    members = read_members(path, [*files["train"], *files["test"]])
    splits = {}
    for split, size in (("train", cifar.train_size), ("test", cifar.test_size)):
        batches = [read_batch(members.pop(name), f"{name} in {path}", cifar) for name in files[split]]
        # The files store images plane by plane. pour stores height x width x channels.
        planes = np.concatenate([pixels for pixels, _ in batches]).reshape(-1, 3, _SIDE, _SIDE)
        labels = np.concatenate([labels for _, labels in batches])
        if len(labels) != size:
            raise UsageError(
                f"{path} has {len(labels):,} {split} images, but {cifar.info.title} has {size:,}; fetch it again."
            )
        splits[split] = ImageSplit(np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels)
    return splits


_Batch = tuple[np.ndarray[tuple[int, ...], np.dtype[np.uint8]], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]


def _python_batch(data: bytes, source: str, cifar: CifarFormat) -> _Batch:
    batch = load_plain(data, source)
    key = cifar.label_key.encode()
    if isinstance(batch, dict):  # written by Python 3 where the keys are strings
        batch = {name.encode() if isinstance(name, str) else name: value for name, value in batch.items()}
    if not isinstance(batch, dict) or b"data" not in batch or key not in batch:
        raise UsageError(f"{source} is not a CIFAR batch: expected a dict with data and {cifar.label_key}.")
    pixels, labels = batch[b"data"], batch[key]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_PIXELS,):
        raise UsageError(f"The data of {source} must be a uint8 array of n x {_PIXELS}.")
    if not isinstance(labels, list) or not all(type(label) is int and abs(label) < 1 << 31 for label in labels):
        raise UsageError(f"The {cifar.label_key} of {source} must be a list of integers.")
    if len(labels) != len(pixels):
        raise UsageError(f"{source} has {len(pixels)} images but {len(labels)} labels.")
    return pixels, np.array(labels, np.int64)


def _binary_batch(data: bytes, source: str, cifar: CifarFormat) -> _Batch:
    record = cifar.label_bytes + _PIXELS
    if not data or len(data) % record:
        raise UsageError(
            f"{source} has {len(data):,} bytes, not a whole number of images of {record} bytes each; fetch it again."
        )
    rows = np.frombuffer(data, np.uint8).reshape(-1, record)
    return rows[:, cifar.label_bytes :], rows[:, cifar.label_bytes - 1].astype(np.int64)
