"""The registry of datasets: list them, find their files and open them by name."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pour._io import existing_file
from pour._plug_ins import load_plug_ins
from pour.data.download import fetch
from pour.data.formats.archives import unpack_tar
from pour.data.formats.cifar import CIFAR10, CIFAR100, find_cifar, read_cifar
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
from pour.data.info import DatasetInfo
from pour.errors import UsageError, nearest_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from pour.data.dataset import ImageDataset

__all__ = [
    "DatasetStatus",
    "NamedDataset",
    "data_root",
    "is_segmentation",
    "list_datasets",
    "load_dataset",
    "load_segmentation",
    "open_dataset",
    "register_dataset",
]

_REFUSED = {
    "chestmnist": "its images have several labels each, and forgetting a class needs images that belong to one class"
}

_SIZED = re.compile(r"(.+)@(\d+)(?:x(\d+))?")


@dataclass(frozen=True, slots=True)
class DatasetStatus:
    """Facts about a named dataset, and the path of its files on this machine."""

    info: DatasetInfo
    present: bool
    path: Path | None
    """Path of the files; None if they are absent or belong to a package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedDataset:
    """A dataset that can be opened by the name in its `info`.

    Examples:
        >>> NamedDataset(info=DatasetInfo(name="mine", title="My images"), read=read_digits).find is None
        True
    """

    info: DatasetInfo
    read: Callable[[Path], Any]
    """Function that reads the dataset from the path that `find` returned. Without `find` it gets the data folder."""
    find: Callable[[Path], Path | None] | None = None
    """Function that returns the path of the files under the data folder, or None if they are absent. None if no files
    are needed."""


_DATASETS: dict[str, NamedDataset] = {
    dataset.info.name: dataset
    for dataset in (
        NamedDataset(info=DIGITS, read=lambda _: read_digits()),
        *(
            NamedDataset(info=cifar.info, find=partial(find_cifar, cifar=cifar), read=partial(read_cifar, cifar=cifar))
            for cifar in (CIFAR10, CIFAR100)
        ),
        *(
            NamedDataset(info=info, find=partial(find_medmnist, name=name), read=partial(read_medmnist, name=name))
            for name, info in MEDMNIST.items()
        ),
        NamedDataset(info=CAMVID, find=find_camvid, read=read_camvid),
        NamedDataset(info=VOC2012, find=find_voc, read=read_voc),
    )
}


def register_dataset(dataset: NamedDataset) -> NamedDataset:
    """Add a dataset to the registry. Raise UsageError if another dataset has its name."""
    if not isinstance(dataset, NamedDataset) or not isinstance(dataset.info, DatasetInfo):
        raise UsageError(f"A dataset is a pour.data.NamedDataset with a DatasetInfo, not {dataset!r}.")
    if _DATASETS.setdefault(dataset.info.name, dataset) != dataset:
        raise UsageError(f"There is already a dataset {dataset.info.name!r}; choose another name.")
    return dataset


def _all_datasets() -> dict[str, NamedDataset]:
    load_plug_ins("dataset", register_dataset)
    return _DATASETS


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the data folder: `root`, otherwise `POUR_DATA` from the environment, otherwise `~/.cache/pour`."""
    named = root or os.environ.get("POUR_DATA")
    path = Path(named).expanduser() if named else Path.home() / ".cache" / "pour"
    if path.is_file():
        raise UsageError(f"The data folder {path} is a file; pass the folder that contains it.")
    return path


def list_datasets(root: str | os.PathLike[str] | None = None) -> list[DatasetStatus]:
    """Return every named dataset with the path of its files under the data folder.

    Examples:
        >>> [status.present for status in list_datasets("/nowhere") if status.info.name == "digits"]
        [True]
    """
    folder = data_root(root)
    statuses = []
    for dataset in _all_datasets().values():
        path = None if dataset.find is None else dataset.find(folder)
        statuses.append(DatasetStatus(dataset.info, present=dataset.find is None or path is not None, path=path))
    return statuses


def load_dataset(
    name: str | os.PathLike[str], root: str | os.PathLike[str] | None = None, *, download: bool = False
) -> ImageDataset:
    """Open a classification dataset.

    Args:
        name: A name from `list_datasets`; the path of a `.npz` file; or the path of a folder with one folder of
            images per class. `PATH@SIZE` and `PATH@HEIGHTxWIDTH` scale the images. Use `folder:PATH` for a folder with
            the name of a dataset.
        root: Data folder, by default `POUR_DATA` or `~/.cache/pour`.
        download: Download missing files.

    Raises:
        UsageError: The name is unknown, or the files are missing or damaged.

    Examples:
        >>> load_dataset("digits").splits["train"]
        ImageSplit(1442 images of 8 x 8 x 1)
    """
    name = os.fspath(name)
    if name.startswith("folder:"):
        return _read_folder(name.removeprefix("folder:"))
    if name not in _all_datasets() and _is_folder(name):
        return _read_folder(name)
    if name.endswith(".npz"):
        return _read_npz(Path(name).expanduser())
    if is_segmentation(name):
        raise UsageError(f"{name} is a segmentation dataset; open it with load_segmentation({name!r}).")
    dataset: ImageDataset = open_dataset(name, root, download=download)
    return dataset


def is_segmentation(name: str) -> bool:
    """Return whether the dataset of that name has a label for every pixel.

    Examples:
        >>> is_segmentation("camvid"), is_segmentation("cifar10")
        (True, False)
    """
    return name in _all_datasets() and _all_datasets()[name].info.task == "segmentation"


def load_segmentation(
    name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False
) -> SegmentationDataset:
    """Open a segmentation dataset: `camvid` or `voc2012`."""
    if name not in _all_datasets():
        raise _unknown(name, [other for other in _DATASETS if is_segmentation(other)])
    if not is_segmentation(name):
        raise UsageError(f"{name} is a classification dataset; open it with load_dataset({name!r}).")
    dataset: SegmentationDataset = open_dataset(name, root, download=download)
    return dataset


def open_dataset(name: str, root: str | os.PathLike[str] | None = None, *, download: bool = False) -> Any:
    """Open the dataset `name` of any task. Raise UsageError if the name is unknown or its files are missing."""
    if name not in _all_datasets():
        raise _unknown(name, list(_DATASETS))
    dataset, folder = _DATASETS[name], data_root(root)
    if dataset.find is None:
        return dataset.read(folder)
    path = dataset.find(folder)
    if path is None and download:
        _download(dataset.info, folder)
        path = dataset.find(folder)
    if path is None:
        raise UsageError(_missing(dataset.info, folder))
    return dataset.read(path)


def _unknown(name: str, names: list[str]) -> UsageError:
    if name in _REFUSED:
        return UsageError(f"{name} is not available: {_REFUSED[name]}.")
    if Path(name).name != name:
        return UsageError(
            f"There is no folder {name}; pass the path of a folder, FILE.npz, or one of {', '.join(names)}."
        )
    hint = nearest_name(name, names, f"known are {', '.join(names)}, the path of a folder and FILE.npz.")
    return UsageError(f"There is no dataset {name!r}; {hint}")


def _download(info: DatasetInfo, root: Path) -> None:
    for file in info.files:
        archive = fetch(file, root)
        if info.name == VOC2012.name:
            unpack_tar(archive, root / info.name, _is_voc_segmentation)


def _missing(info: DatasetInfo, root: Path) -> str:
    if not info.files:
        return f"{info.name} is not under {root}; fetch it from {info.homepage} and put it there."
    addresses = ", ".join(file.url for file in info.files)
    extra = "" if importlib.util.find_spec("pooch") else ', which needs pip install "pour-unlearning[download]"'
    return (
        f"{info.name} is not under {root}; set POUR_DATA, or pass the folder that has it with root=, "
        f"or download it with download=True{extra}, or fetch {addresses} and put it there."
    )


def _is_voc_segmentation(member: PurePosixPath) -> bool:
    return member.parent.name in ("JPEGImages", "SegmentationClass", "Segmentation")


def _is_folder(place: str) -> bool:
    sized = _SIZED.fullmatch(place)
    return any(Path(path).expanduser().is_dir() for path in (place, *([sized[1]] if sized else [])))


def _read_folder(place: str) -> ImageDataset:
    path = Path(place).expanduser()
    sized = _SIZED.fullmatch(place)
    if sized and not path.exists():
        return read_folder(Path(sized[1]).expanduser(), size=(int(sized[2]), int(sized[3] or sized[2])))
    return read_folder(path)


def _read_npz(path: Path) -> ImageDataset:
    existing_file(path)
    # MedMNIST's larger versions are called pathmnist_64.npz and so on.
    name = re.sub(r"_\d+$", "", path.stem)
    if name in _REFUSED:
        raise UsageError(f"{name} is not available: {_REFUSED[name]}.")
    if name in (*MEDMNIST, CIFAR10.info.name, CIFAR100.info.name):
        dataset: ImageDataset = _DATASETS[name].read(path)
        return dataset
    return read_npz_dataset(path)
