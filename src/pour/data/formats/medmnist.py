"""The two-dimensional MedMNIST sets: small medical images in one `.npz` file each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.data.dataset import ImageDataset, ImageSplit
from pour.data.formats.mosaic import is_mosaic, read_class_names, read_mosaic
from pour.data.formats.npz import read_npz_splits
from pour.data.info import official, official_names
from pour.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MEDMNIST", "find_medmnist", "read_medmnist"]

MEDMNIST = {name: official(name) for name in official_names("medmnist")}
"""Facts about the sets by name."""


def find_medmnist(root: Path, name: str) -> Path | None:
    """Return the `.npz` file or the folder of mosaics of the set `name` under `root`."""
    file = next((path for path in (root / f"{name}.npz", root / name / f"{name}.npz") if path.is_file()), None)
    return file or (root / name if is_mosaic(root / name) else None)


def read_medmnist(path: Path, name: str) -> ImageDataset:
    """Return the set `name` stored at `path`.

    PathMNIST's `val` comes from the clinics of the training images and is the test split. Its `test` comes from another
    clinic and is the split `external`. In the other sets `test` is the test split, and `val` is a further split.
    """
    if path.is_dir():
        splits, stored = read_mosaic(path), read_class_names(path)
    else:
        splits, stored = read_npz_splits(path)
    return ImageDataset(
        name=name,
        classes=stored or MEDMNIST[name].classes,
        splits=_external_apart(path, splits) if name == "pathmnist" else splits,
        info=MEDMNIST[name],
    )


def _external_apart(path: Path, splits: dict[str, ImageSplit]) -> dict[str, ImageSplit]:
    for needed in ("val", "test"):
        if needed not in splits:
            raise UsageError(f"{path} has no {needed} images; PathMNIST has train, val and test.")
    return {"train": splits["train"], "test": splits["val"], "external": splits["test"]}
