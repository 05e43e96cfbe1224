"""Names that are imported when first used, so that ``pour --help`` does not wait for torchmetrics."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

__all__ = ["lazy_names"]


def lazy_names(package: str, homes: Mapping[str, str], rooms: Container[str] = ()) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that imports each name from its home on first use.

    Args:
        package: Name of the module.
        homes: Module that defines each name.
        rooms: Names of subpackages that are attributes too.

    Example:
        >>> lazy_names("package", {"sqrt": "math"})("sqrt")(9.0)
        3.0
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name in rooms:
            return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return __getattr__
