"""Write the message after Ctrl-C: the files that were written, and how to continue."""

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
    """Return the file next to a model that contains its unfinished training."""
    return out.with_name(f"{out.name}.resume")


def after_interruption(command: str, values: Mapping[str, Any], started: float) -> str:
    """Return the message after an interruption.

    Args:
        command: Name of the command.
        values: Values of its flags.
        started: Time at which the command started, in seconds since the epoch.
    """
    cache = values.get("cache")
    if (
        command in _STORES
        or (command == "train" and resume_file(values["out"]).is_file())
        or (isinstance(cache, Path) and cache.is_dir() and any(cache.iterdir()))
    ):
        return f"Interrupted. {_RESUME}"
    outputs = [path for name in _OUTPUTS if isinstance(path := values.get(name), Path)]
    if written := [str(path) for path in outputs if _is_written(path, started)]:
        again = "the same command needs --overwrite" if "overwrite" in values else "the same command replaces it"
        return f"Interrupted after {' and '.join(written)} was written; {again}."
    return "Interrupted. Nothing was written; start the same command again."


def _is_written(path: Path, started: float) -> bool:
    """Return whether a file, or a file in a folder, was written since `started`."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path] * path.is_file()
    return any(file.stat().st_mtime >= started for file in files)
