"""The message after Ctrl-C: what is kept, and what the same command does with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["after_interruption", "resume_file"]

_RESUME = "The same command resumes here."
_STORES = ("bench", "tune", "study")
"""Commands that store each finished part of their work."""
_OUTPUTS = ("out", "report", "export")


def resume_file(out: Path) -> Path:
    """Return the file next to a model that keeps its unfinished training."""
    return out.with_name(f"{out.name}.resume")


def after_interruption(command: str, values: Mapping[str, Any], started: float) -> str:
    """Return the message after an interruption.

    Args:
        command: Name of the command.
        values: Values of its flags.
        started: Time at which the command started, in seconds since the epoch.
    """
    files = [path for name in _OUTPUTS if isinstance(path := values.get(name), Path) and path.is_file()]
    if written := [str(path) for path in files if path.stat().st_mtime >= started]:
        return f"Interrupted after {' and '.join(written)} was written; the same command needs --overwrite."
    cache = values.get("cache")
    if (
        command in _STORES
        or (command == "train" and resume_file(values["out"]).is_file())
        or (isinstance(cache, Path) and cache.is_dir() and any(cache.iterdir()))
    ):
        return f"Interrupted. {_RESUME}"
    return "Interrupted. Nothing was written; start the same command again."
