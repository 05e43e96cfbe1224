"""Files that are either whole or absent."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["atomic_path", "refuse_to_overwrite", "write_text"]


def refuse_to_overwrite(path: Path, *, overwrite: bool) -> None:
    """Raise unless ``path`` can be a file that is free, or that the caller said may be replaced."""
    blocked = next((parent for parent in path.parents if parent.is_file()), None)
    if blocked is not None:
        raise UsageError(f"{path} cannot be written, because {blocked} is a file and no folder.")
    if path.is_dir():
        raise UsageError(f"{path} is a folder; give the name of a file.")
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no regular file and cannot be replaced; give the name of one.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} already exists; pass overwrite=True, or --overwrite in a command, to replace it.")


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; it takes the place of ``path`` only when the block succeeds.

    On any error, a full disk included, the temporary file is removed and ``path`` is as it was before. Where ``path``
    is a link, what it leads to is replaced.
    """
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
    except OSError as error:
        raise PourError(f"Cannot write to {target.parent}: {error.strerror or error}.") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise PourError(f"Could not write {target}: {reason}; nothing was changed.") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write ``text`` to ``path`` as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
