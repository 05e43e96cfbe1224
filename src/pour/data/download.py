"""Download files: checksums are verified, and an interrupted download is resumed."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from pour._progress import ProgressBar
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from pour.data.info import RemoteFile

__all__ = ["fetch"]

_TIMEOUT = 30
_CHUNK = 1 << 18
_MEGABYTE = 10**6


def fetch(file: RemoteFile, folder: Path, *, progress: bool = True) -> Path:
    """Download `file` into `folder` if it is missing, and return its path.

    The file is renamed to its final name after its checksum is verified. If the connection breaks, a hidden `.part`
    file contains the received bytes, and the next call resumes the download.

    Raises:
        UsageError: pooch is not installed.
        PourError: There is no network, the server refuses, the checksum is wrong or the disk is full.
    """
    target = folder / file.filename
    by_hand = f"or fetch {file.url} yourself and put it at {target}"
    try:
        import pooch
        import requests
    except ImportError as error:
        raise UsageError(f'Downloading needs pooch: pip install "pour-unlearning[download]", {by_hand}.') from error
    pooch.get_logger().setLevel("WARNING")
    part = folder / f".{file.filename}.part"
    try:
        pooch.retrieve(
            file.url,
            file.checksum,
            fname=file.filename,
            path=folder,
            downloader=lambda url, output, _: _resume(url, output, part, file.filename, progress=progress),
        )
    except requests.exceptions.RequestException as error:
        raise PourError(
            f"Could not download {file.url} ({_reason(error)}); try again when there is a network, {by_hand}."
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            part.unlink(missing_ok=True)
        raise PourError(
            f"Could not write {target}: {error.strerror or error}; free space or choose another folder (no partial "
            "file remains)."
        ) from error
    except ValueError as error:  # pooch reports a wrong checksum after removing the file
        raise PourError(
            f"The file from {file.url} has another checksum than {file.checksum} and was removed; try again, {by_hand}."
        ) from error
    return target


def _resume(url: str, output_file: str, part: Path, title: str, *, progress: bool) -> None:
    """Download `url` to `output_file`. Request only the bytes that are missing in the file `part`."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    # A range counts the sent bytes, so the server must not compress them.
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
        if response.status_code == requests.codes.requested_range_not_satisfiable:
            # The part is complete or belongs to another file. The checksum is verified later.
            part.replace(output_file)
            return
        response.raise_for_status()
        start = have if response.status_code == requests.codes.partial_content else 0
        total = start + int(response.headers.get("Content-Length", 0))
        bar = ProgressBar(total // _MEGABYTE, f"{title} (MB)", enabled=progress)
        with bar, part.open("r+b" if start else "wb") as file:
            file.seek(start)
            for chunk in response.iter_content(_CHUNK):
                file.write(chunk)
                bar.update(file.tell() // _MEGABYTE)
    received = part.stat().st_size
    if received < total:
        raise requests.exceptions.ConnectionError(f"the connection broke off after {received:,} bytes")
    part.replace(output_file)


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code} {response.reason}"
    text = str(error)
    return text if text.startswith("the connection broke") else f"no connection: {type(error).__name__}"
