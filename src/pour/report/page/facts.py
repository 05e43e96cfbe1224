"""Facts about an audit: forgotten classes, data that the methods read, and versions."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import TYPE_CHECKING

from pour._words import in_words
from pour.errors import UsageError
from pour.unlearning.registry import get_method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.auditing.report import AuditedData, AuditReport

__all__ = ["access_of", "forgotten_words", "versions"]

_NAMED = 4
_ACCESS = {
    "forget": "images of the forgotten classes",
    "retain": "images of the retained classes",
    "validation": "validation images",
    "build": "a newly initialised model",
}
_PACKAGES = ("torch", "numpy", "scikit-learn", "torchmetrics", "safetensors")


def forgotten_words(data: AuditedData) -> str:
    """Return the names of the forgotten classes; of many classes, the first names and the number of classes.

    Examples:
        >>> from pour.auditing import AuditedData
        >>> forgotten_words(AuditedData(name="d", classes=("cat", "dog", "emu"), forgotten=(0, 2), counts={}))
        '“cat” and “emu”'
    """
    names = [f"“{name}”" for name in data.forgotten_names]
    if len(names) > _NAMED:
        return f"{len(names)} classes ({', '.join(names[:3])} and {len(names) - 3} more)"
    return in_words(names)


def access_of(methods: Sequence[str]) -> str:
    """Return the data that the methods of a model's history read, together.

    Examples:
        >>> access_of(["pour-p"]), access_of(["pour-d"]), access_of(["unregistered"])
        ('no data, only the weights', 'images of the forgotten classes', 'unknown')
    """
    try:
        needs = [need for name in methods if name != "fold" for need in get_method(name).needs]
    except UsageError:
        return "unknown"
    if not methods:
        return "unknown"
    return ", ".join(words for need, words in _ACCESS.items() if need in needs) or "no data, only the weights"


def versions(report: AuditReport) -> dict[str, str]:
    """Return the pour version of the audit and the versions of the installed packages."""
    packages = {package: version(package) for package in _PACKAGES}
    return {"pour": report.pour_version, "Python": platform.python_version(), **packages}
