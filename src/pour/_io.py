"""Write files completely or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["atomic_path", "existing_file", "refuse_to_overwrite", "write_text"]


def existing_file(path: str | os.PathLike[str], kind: str = "file") -> Path:
    """Return `path`. Raise UsageError if there is no such file."""
    file = Path(path)
    if file.is_dir():
        raise UsageError(f"{file} is a folder; give the name of a {kind}.")
    if not file.is_file():
        raise UsageError(f"There is no {kind} {file}; check the path.")
    return file


def refuse_to_overwrite(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError unless `path` is free for a file, or is a file and `overwrite` is True."""
    blocked = next((parent for parent in path.parents if parent.is_file()), None)
    if blocked is not None:
        raise UsageError(f"{path} cannot be written, because {blocked} is a file and not a folder.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file and cannot be replaced; give the name of one.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} already exists; pass overwrite=True to replace it.")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file in the same folder, which replaces `path` only if the block succeeds.

    After any error, such as a full disk, the temporary file is removed and `path` has not changed. If `path` is a
    link, its target is replaced.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        yield temporary
        # Libraries may replace the file, and only its owner could read the new file.
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PourError(f"Could not write {target}: {reason}; nothing was changed.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
