"""The headline's facts in words: what was forgotten, with which data, in what time, read against what."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pour.errors import UsageError
from pour.unlearning.registry import get_method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.auditing.report import AuditedData, AuditReport
    from pour.models.history import HistoryEntry

__all__ = ["access_of", "forgotten_words", "reference_words", "seconds_of", "versions"]

_NAMED = 4
_ACCESS = {
    "forget": "images of the forgotten classes",
    "retain": "images of the retained classes",
    "validation": "validation images",
    "build": "a fresh model to train",
}
_PACKAGES = ("torch", "numpy", "scikit-learn", "torchmetrics", "safetensors")


def forgotten_words(data: AuditedData) -> str:
    """The forgotten classes by name, or the first of them and their number.

    Example:
        >>> from pour.auditing import AuditedData
        >>> forgotten_words(AuditedData(name="d", classes=("cat", "dog", "emu"), forgotten=(0, 2), counts={}))
        '“cat” and “emu”'
    """
    names = [f"“{name}”" for name in data.forgotten_names]
    if len(names) > _NAMED:
        return f"{len(names)} classes ({', '.join(names[:3])} and {len(names) - 3} more)"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def access_of(methods: Sequence[str]) -> str:
    """What data the methods of a model's history read, together.

    Example:
        >>> access_of(["pour-p"]), access_of(["pour-d"]), access_of(["somebody's"])
        ('no data, the weights alone', 'images of the forgotten classes', 'not known')
    """
    needs: list[str] = []
    for name in methods:
        if name == "fold":
            continue
        try:
            needs += get_method(name).needs
        except UsageError:
            return "not known"
    if not methods:
        return "not known"
    return ", ".join(words for need, words in _ACCESS.items() if need in needs) or "no data, the weights alone"


def seconds_of(history: Sequence[HistoryEntry]) -> float | None:
    """The time of all steps; None where it was not measured, as in a model read from a file."""
    return sum(record.seconds for record in history) or None


def reference_words(report: AuditReport) -> str:
    """What verdicts were read against."""
    count = sum(role.startswith("retrained") for role in report.models)
    if not count:
        return "no retrained model, so there are no verdicts"
    return "a model retrained without the class" if count == 1 else f"{count} models retrained without the class"


def versions(report: AuditReport) -> dict[str, str]:
    """Versions of pour, as the audit was made with, and of what it stands on, as they are here."""
    found = {"pour": report.pour_version, "Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
