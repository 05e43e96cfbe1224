"""Load what other packages add by entry points: methods, metrics, datasets and tasks."""

from __future__ import annotations

import traceback
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Literal

from pour.errors import warn

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Kind", "load_plug_ins"]

Kind = Literal["method", "metric", "dataset", "task"]
"""Kind of object that a package can add. The group of its entry points is the plural, such as `pour.methods`."""

_LOADED: set[Kind] = set()


def load_plug_ins(kind: Kind, register: Callable[[Any], object]) -> None:
    """Register everything of one kind that other packages add, once per process.

    An entry point that cannot be loaded or registered causes one warning and has no other effect, also if its module
    calls `sys.exit`.

    Args:
        kind: Kind of the objects.
        register: Function that checks an object and adds it to its registry.
    """
    if kind in _LOADED:
        return
    # Marked before the loop, because a module of a plug-in may read the registry, too.
    _LOADED.add(kind)
    for entry in entry_points(group=f"pour.{kind}s"):
        try:
            register(entry.load())
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # A broken package must not end the program of its user.
            package = repr(entry.dist.name) if entry.dist else "an installed package"
            warn(
                f"The {kind} {entry.name!r} of {package} is not available, because {entry.value!r} failed: "
                f"{_reason(error)}."
            )


def _reason(error: BaseException) -> str:
    """Return the type and the first line of the message of `error`, without control characters."""
    text = traceback.format_exception_only(error)[-1].strip().splitlines()[0].rstrip(".")
    return "".join(character if character.isprintable() else "?" for character in text)
