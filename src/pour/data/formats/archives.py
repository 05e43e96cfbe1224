"""Read archives in memory: tar files, folders of the same files, and `.npz`."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import shutil
import tarfile
import tempfile
import tokenize
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

__all__ = ["check_digest", "read_array", "read_members", "read_npz", "unpack_tar"]

# Errors that tarfile, zipfile and numpy raise on damaged files. RuntimeError is for a damaged zip flag.
_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    SyntaxError,
    EOFError,
    OSError,
    RuntimeError,
    MemoryError,
)
_LARGEST_MEMBER = 1 << 30


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged file into UsageError."""
    try:
        yield
    except UsageError:
        raise
    except (*_DAMAGE, ValueError) as error:
        if "allow_pickle" in str(error):
            raise UsageError(f"{path} is refused because it contains pickled objects; only arrays are read.") from error
        raise _damaged(path, error) from error


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the bytes of the files `names` in a folder or a tar archive, by file name.

    Nothing is written to disk, so names such as `../x` in an archive have no effect. A gzipped archive is read to
    its end, which contains the checksum.

    Raises:
        UsageError: A file is missing, or the archive is truncated or damaged.
    """
    with _reading(path):
        if path.is_dir():
            members = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
        else:
            members = _tar_members(path, names)
    missing = [name for name in names if name not in members]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}; it is incomplete, so fetch it again.")
    return members


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of a `.npz` file. Arrays of Python objects are refused.

    Raises:
        UsageError: The file is truncated, damaged, no `.npz` file, or contains pickled objects.
    """
    with _reading(path):
        opened = np.load(path, allow_pickle=False)
        if not isinstance(opened, np.lib.npyio.NpzFile):
            raise UsageError(f"{path} contains one array; a .npz file with named arrays is expected.")
        with opened as stored:
            return {name: stored[name] for name in stored.files}


def read_array(path: Path) -> NDArray[Any]:
    """Return the array in a `.npy` file. Arrays of Python objects are refused."""
    with _reading(path):
        stored = np.load(path, allow_pickle=False)
    if not isinstance(stored, np.ndarray):
        raise UsageError(f"{path} contains several arrays; a .npy file with one is expected.")
    return stored


def check_digest(path: Path, checksum: str) -> None:
    """Raise UsageError unless the file `path` has the checksum `algorithm:hex`."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    if actual != expected:
        raise UsageError(
            f"{path} is truncated or altered: its {algorithm} is {actual}, but the official file has {expected}; "
            "delete it and fetch it again."
        )


def unpack_tar(archive: Path, target: Path, keep: Callable[[PurePosixPath], bool]) -> None:
    """Unpack the members of an uncompressed `archive` that `keep` accepts into the new folder `target`.

    `keep` gets the path of each member. Links, devices and paths that lead out of the folder are skipped. If unpacking
    fails, `target` does not exist.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        _check_end(archive)
        with tarfile.open(archive, "r:") as opened:
            for member in opened:
                inside = PurePosixPath(member.name)
                if not member.isfile() or inside.is_absolute() or ".." in inside.parts or not keep(inside):
                    continue
                place = temporary / inside
                place.parent.mkdir(parents=True, exist_ok=True)
                with cast("IO[bytes]", opened.extractfile(member)) as packed, place.open("wb") as unpacked:
                    shutil.copyfileobj(packed, unpacked)
        temporary.chmod(0o755)
        temporary.rename(target)
    except (tarfile.TarError, zlib.error, EOFError) as error:
        raise _damaged(archive, error) from error
    except OSError as error:
        raise PourError(
            f"Could not unpack {archive} to {target}: {error.strerror or error}; free space or choose another folder."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_end(archive: Path) -> None:
    """Raise ReadError unless the archive ends in zero blocks.

    tarfile accepts an archive that was cut off between two files.
    """
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - 2 * tarfile.BLOCKSIZE))
        if file.read() != bytes(2 * tarfile.BLOCKSIZE):
            raise tarfile.ReadError("unexpected end of data")


def _tar_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    members = {}
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file)) if zipped else file
        with tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in names or not member.isfile():
                    continue
                if member.size > _LARGEST_MEMBER:
                    raise UsageError(f"{path} is refused because {member.name} in it claims {member.size:,} bytes.")
                members[name] = cast("IO[bytes]", archive.extractfile(member)).read()
        while zipped and stream.read(1 << 20):
            continue
    return members


def _damaged(path: Path, error: Exception) -> UsageError:
    if isinstance(error, FileNotFoundError):
        return UsageError(f"{path} does not exist.")
    if isinstance(error, PermissionError):
        return UsageError(f"{path} cannot be read: {error.strerror}.")
    reason = str(error) or type(error).__name__
    return UsageError(f"{path} is truncated or damaged ({reason}); delete it and fetch it again.")
