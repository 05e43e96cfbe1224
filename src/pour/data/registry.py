"""Datasets by name: what there is, what is present, and opening it."""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pour.data.download import fetch
from pour.data.formats.archives import unpack_tar
from pour.data.formats.cifar import CIFAR10, CIFAR100, CifarFormat, find_cifar, read_cifar
from pour.data.formats.digits import DIGITS, read_digits
from pour.data.formats.folder import read_folder
from pour.data.formats.medmnist import MEDMNIST, find_medmnist, read_medmnist
from pour.data.formats.npz import read_npz_dataset
from pour.data.formats.scenes import (
    CAMVID,
    VOC2012,
    SegmentationDataset,
    find_camvid,
    find_voc,
    read_camvid,
    read_voc,
)
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pour.data.dataset import ImageDataset
    from pour.data.info import DatasetInfo

__all__ = ["DatasetStatus", "data_root", "is_segmentation", "list_datasets", "load_dataset", "load_segmentation"]

T = TypeVar("T")

_REFUSED = {
    "chestmnist": "its images have several labels each, and forgetting a class needs images that belong to one class"
}


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """A dataset that can be asked for by name, and whether it is there."""

    info: DatasetInfo
    present: bool
    path: Path | None
    """Where it was found; None where it is absent or ships with a package."""


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    info: DatasetInfo
    find: Callable[[Path], Path | None]
    read: Callable[[Path], T]


def _cifar_entry(cifar: CifarFormat) -> _Entry[ImageDataset]:
    return _Entry(cifar.info, partial(find_cifar, cifar=cifar), partial(read_cifar, cifar=cifar))


def _medmnist_entry(info: DatasetInfo) -> _Entry[ImageDataset]:
    return _Entry(info, partial(find_medmnist, name=info.name), partial(read_medmnist, name=info.name))


_IMAGES: dict[str, _Entry[ImageDataset]] = {
    entry.info.name: entry
    for entry in (_cifar_entry(CIFAR10), _cifar_entry(CIFAR100), *map(_medmnist_entry, MEDMNIST.values()))
}
_SEGMENTATION: dict[str, _Entry[SegmentationDataset]] = {
    "camvid": _Entry(CAMVID, find_camvid, read_camvid),
    "voc2012": _Entry(VOC2012, find_voc, read_voc),
}


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the data folder: ``root``, else ``POUR_DATA`` from the environment, else ``~/.cache/pour``."""
    chosen = root or os.environ.get("POUR_DATA")
    path = Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "pour"
    if path.is_file():
        raise UsageError(f"The data folder {path} is a file; give the folder that holds it.")
    return path


def list_datasets(root: str | os.PathLike[str] | None = None) -> list[DatasetStatus]:
    """List the datasets that have a name, and where they are under the data folder.

    Example:
        >>> [status.present for status in list_datasets("/nowhere") if status.info.name == "digits"]
        [True]
    """
    folder = data_root(root)
    found = [DatasetStatus(DIGITS, present=True, path=None)]
    entries: list[_Entry[Any]] = [*_IMAGES.values(), *_SEGMENTATION.values()]
    for entry in entries:
        path = entry.find(folder)
        found.append(DatasetStatus(entry.info, present=path is not None, path=path))
    return found


def load_dataset(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False) -> ImageDataset:
    """Open a classification dataset.

    Args:
        name: A name from :func:`list_datasets`; ``folder:PATH`` for a folder with one folder per class
            (``folder:PATH@SIZE`` scales the images); or the path of a ``.npz`` file.
        root: The data folder, by default ``POUR_DATA`` or ``~/.cache/pour``.
        download: Fetch what is not there.

    Raises:
        UsageError: The name is unknown, the data is not there, or it is damaged.

    Example:
        >>> load_dataset("digits").splits["train"]
        ImageSplit(1442 images of 8 x 8 x 1)
    """
    if name.startswith("folder:"):
        return _read_folder(name.removeprefix("folder:"))
    if name.endswith(".npz"):
        return _read_npz(Path(name).expanduser())
    if name == "digits":
        return read_digits()
    if name in _SEGMENTATION:
        raise UsageError(f"{name} is a segmentation dataset; open it with load_segmentation({name!r}).")
    entry = _entry(name, _IMAGES)
    return entry.read(_locate(entry, data_root(root), download=download))


def is_segmentation(name: str) -> bool:
    """Whether a dataset of that name has a label to every pixel.

    Example:
        >>> is_segmentation("camvid"), is_segmentation("cifar10")
        (True, False)
    """
    return name in _SEGMENTATION


def load_segmentation(
    name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False
) -> SegmentationDataset:
    """Open a segmentation dataset: ``camvid`` or ``voc2012``."""
    if name in _IMAGES or name == "digits":
        raise UsageError(f"{name} is a classification dataset; open it with load_dataset({name!r}).")
    entry = _entry(name, _SEGMENTATION)
    return entry.read(_locate(entry, data_root(root), download=download))


def _entry(name: str, known: Mapping[str, _Entry[T]]) -> _Entry[T]:
    if name in known:
        return known[name]
    if name in _REFUSED:
        raise UsageError(f"{name} is not offered: {_REFUSED[name]}.")
    names = ["digits", *known] if known is _IMAGES else list(known)
    close = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else "."
    raise UsageError(f"There is no dataset {name!r}{hint} Known are {', '.join(names)}, folder:PATH and FILE.npz.")


def _locate(entry: _Entry[T], root: Path, *, download: bool) -> Path:
    info = entry.info
    path = entry.find(root)
    if path is None and download:
        for file in info.files:
            archive = fetch(file, root)
            if info is VOC2012:
                unpack_tar(archive, root / info.name, _is_voc_segmentation)
        path = entry.find(root)
    if path is not None:
        return path
    if not info.files:
        raise UsageError(f"{info.name} is not under {root}; fetch it from {info.homepage} and put it there.")
    addresses = ", ".join(file.url for file in info.files)
    extra = "" if importlib.util.find_spec("pooch") else ', which needs pip install "pour-unlearning[download]"'
    raise UsageError(
        f"{info.name} is not under {root}; set POUR_DATA or root (--root) to the folder that has it, pass "
        f"download=True (pour train --download){extra}, or fetch {addresses} and put it there."
    )


def _is_voc_segmentation(member: PurePosixPath) -> bool:
    return member.parent.name in ("JPEGImages", "SegmentationClass", "Segmentation")


def _read_folder(place: str) -> ImageDataset:
    path = Path(place).expanduser()
    sized = re.fullmatch(r"(.+)@(\d+)", place)
    if sized and not path.exists():
        return read_folder(Path(sized[1]).expanduser(), size=int(sized[2]))
    return read_folder(path)


def _read_npz(path: Path) -> ImageDataset:
    if not path.is_file():
        raise UsageError(f"{path} does not exist; give the path of a .npz file.")
    # MedMNIST's larger versions are called pathmnist_64.npz and so on.
    name = re.sub(r"_\d+$", "", path.stem)
    if name in _REFUSED:
        raise UsageError(f"{name} is not offered: {_REFUSED[name]}.")
    if name in MEDMNIST:
        return read_medmnist(path, name)
    for cifar in (CIFAR10, CIFAR100):
        if name == cifar.info.name:
            return read_cifar(path, cifar)
    return read_npz_dataset(path, name=path.stem)
