"""Define the errors and warnings of pour. A message is one sentence: the problem and the remedy."""

from __future__ import annotations

import difflib
import sys
import threading
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

__all__ = [
    "DivergenceError",
    "PourError",
    "PourWarning",
    "UsageError",
    "check_choice",
    "first_line",
    "nearest_name",
    "warn",
]

# Packages whose functions call pour back: decorators, context managers, threads and imports.
_BETWEEN = frozenset({"pour", "concurrent", "contextlib", "functools", "importlib", "threading", "torch"})

# Least similarity of a suggested name: "cifar01" suggests "cifar10", but "cat" does not suggest "car".
_CLOSE = 0.75


class PourError(Exception):
    """Error in the work, such as a failed download. The command line prints its message and exits with 1."""


class UsageError(PourError, ValueError):
    """Error in the use of pour: bad input, an impossible request, an unreadable file. The command line exits with 2."""


class DivergenceError(PourError):
    """An optimisation whose loss became NaN or exploded. The message contains the step and the learning rate."""


class PourWarning(UserWarning):
    """Warning about the data, the options or a result. It contains the line of the user's code."""


def warn(message: str) -> None:
    """Warn with a `PourWarning` that points at the first line outside pour.

    In a worker thread this is the line at which the main thread called pour.
    """
    frame = _user_frame(sys._getframe()) or _user_frame(sys._current_frames()[threading.main_thread().ident or 0])
    module_globals = {} if frame is None else frame.f_globals
    warnings.warn_explicit(
        message,
        PourWarning,
        filename="pour" if frame is None else frame.f_code.co_filename,
        lineno=1 if frame is None else frame.f_lineno,
        module=module_globals.get("__name__", "pour"),
        registry=module_globals.setdefault("__warningregistry__", {}),
    )


def _user_frame(frame: FrameType | None) -> FrameType | None:
    """Return the first frame outside pour and outside the packages of `_BETWEEN`, from the innermost outwards."""
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    return frame


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise UsageError if the option `name` has a value other than `choices`."""
    allowed = list(choices)
    if value not in allowed:
        raise UsageError(f"{name} is {value!r}; choose one of {', '.join(map(repr, allowed))}.")


def nearest_name(name: str, names: Iterable[str], otherwise: str) -> str:
    """Return the remedy for an unknown name: "did you mean 'x'?", or `otherwise` if none of `names` is near.

    Capital letters make no difference.

    Examples:
        >>> nearest_name("cifar01", ["cifar10", "camvid"], "see the list.")
        "did you mean 'cifar10'?"
    """
    by_lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_CLOSE)
    return f"did you mean {by_lower[close[0]]!r}?" if close else otherwise


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class if the message is empty."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
