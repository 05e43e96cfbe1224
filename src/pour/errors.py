"""The errors that pour raises on purpose. Their message is one sentence: the problem and the remedy."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["DivergenceError", "PourError", "UsageError", "check_choice", "first_line", "nearest_name"]


class PourError(Exception):
    """Work that failed. The command line prints its sentence and exits with 1."""


class UsageError(PourError, ValueError):
    """Wrong use: bad input, an impossible request, an unreadable file. The command line exits with 2."""


class DivergenceError(PourError):
    """An optimisation whose loss became NaN or exploded. The message contains the step and the learning rate."""


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise UsageError if the option ``name`` has a value other than ``choices``."""
    allowed = list(choices)
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}; choose one of {', '.join(map(repr, allowed))}.")


def nearest_name(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: "did you mean 'x'?", or ``otherwise`` if none of ``names`` is near.

    Capital letters make no difference.

    Example:
        >>> nearest_name("cifar01", ["cifar10", "camvid"], "see the list.")
        "did you mean 'cifar10'?"
    """
    by_lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean {by_lower[close[0]]!r}?" if close else otherwise


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if the message is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
