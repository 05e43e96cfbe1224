"""Lightning Fabric, imported without what it does not use."""

from __future__ import annotations

import contextlib
import logging
import sys
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lightning_fabric import Fabric

__all__ = ["fabric_class"]


def fabric_class() -> type[Fabric]:
    """The class ``Fabric``; a process that only trains ends without torchmetrics."""
    try:
        with _known_by_its_version("torchmetrics"):
            from lightning_fabric import Fabric
    except ImportError:
        from lightning.fabric import Fabric
    for package in ("lightning_fabric", "lightning.fabric"):
        # It announces the precision at every start, and would drown what a command has to say.
        announcer = logging.getLogger(f"{package}.utilities.rank_zero")
        if announcer.level == logging.NOTSET:
            announcer.setLevel(logging.WARNING)
    found: type[Fabric] = Fabric
    return found


@contextlib.contextmanager
def _known_by_its_version(package: str) -> Iterator[None]:
    """Let ``package`` have a version, and nothing else, while the block runs, unless it was imported before.

    Fabric imports torchmetrics, and with it half of SciPy, only to ask for its version: in a short training that takes
    longer than the steps do.
    """
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        yield
        return
    if package in sys.modules:
        yield
        return
    stand_in = ModuleType(package)
    stand_in.__version__ = version  # type: ignore[attr-defined]
    sys.modules[package] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(package) is stand_in:
            del sys.modules[package]
