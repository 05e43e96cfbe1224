"""Import names at their first use, so that `pour --help` does not wait for torchmetrics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping, Sequence

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, Sequence[str]], rooms: Container[str] = ()) -> Callable[[str], Any]:
    """Return a package's `__getattr__` that imports each name from its home on first use.

    Args:
        package: Name of the package.
        homes: Names that each module of the package defines, by the module's name inside the package.
        rooms: Names of subpackages that are attributes too.

    Examples:
        >>> lazy_names("importlib", {"metadata": ["version"]})("version").__name__
        'version'
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)

    return __getattr__
