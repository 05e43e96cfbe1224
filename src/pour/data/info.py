"""Facts about datasets: their origin, their terms and their classes."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["OWN_DATA", "DatasetInfo", "RemoteFile", "official", "official_names"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a server, with its checksum."""

    url: str
    """Address of the file."""
    filename: str
    """Name of the file in the data folder."""
    checksum: str
    """`algorithm:hex digits`, for example `sha256:6d95...`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """Facts about a dataset.

    Examples:
        >>> DatasetInfo(name="mine", title="My own images").task
        'classification'
    """

    name: str
    """Name in pour."""
    title: str
    """Full name."""
    task: str = "classification"
    """Kind of labels: `classification`, `segmentation`, or the name of another package's task."""
    licence: str = "not stated"
    citation: str = ""
    """Reference to the paper or report that introduced the dataset."""
    homepage: str = ""
    files: tuple[RemoteFile, ...] = ()
    """Files to download. Empty if the dataset comes with a package or must be fetched by hand."""
    needs: str = ""
    """Packages and files that the dataset needs, as a phrase."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class, unlike a digit."""
    classes: tuple[str, ...] = ()
    """Official names of the classes in the order of their labels; empty if the files have them."""


OWN_DATA = DatasetInfo(name="own", title="The user's own images", needs="the files themselves")


@cache
def _facts() -> dict[str, Any]:
    return tomllib.loads((files("pour.data") / "datasets.toml").read_text(encoding="utf-8"))


@cache
def official(name: str) -> DatasetInfo:
    """Return the facts about a dataset in `datasets.toml`.

    Examples:
        >>> official("cifar10").classes[:2], official("pathmnist").title
        (('airplane', 'automobile'), 'PathMNIST')
    """
    facts = dict(_facts()[name])
    family = _facts()["family"].get(facts.pop("family", ""), {})
    remote = tuple(RemoteFile(**file) for file in facts.pop("files", ()))
    return DatasetInfo(name=name, files=remote, classes=tuple(facts.pop("classes")), **{**family, **facts})


def official_names(family: str) -> tuple[str, ...]:
    """Return the names of the datasets of a family in `datasets.toml`."""
    return tuple(name for name, facts in _facts().items() if facts.get("family") == family)
