"""What a dataset is, where it comes from and under which terms."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["OWN_DATA", "DatasetInfo", "RemoteFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file on a server, with the checksum that tells whether it arrived whole."""

    url: str
    """Address it is fetched from."""
    filename: str
    """Name it has under the data folder."""
    checksum: str
    """``algorithm:hex digits``, for example ``sha256:6d95...``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """Facts about a dataset.

    Example:
        >>> DatasetInfo(name="mine", title="My own images").task
        'classification'
    """

    name: str
    """Name under which it is asked for."""
    title: str
    """Name under which people know it."""
    task: str = "classification"
    """Kind of labels: ``classification``, ``segmentation``, or the name of another package's task."""
    licence: str = "not stated"
    citation: str = ""
    """Reference to the paper or report that introduced it."""
    homepage: str = ""
    files: tuple[RemoteFile, ...] = ()
    """What can be downloaded; empty where it ships with a package or has to be fetched by hand."""
    needs: str = ""
    """What has to be there before it can be read, in words."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class; not so for digits."""


OWN_DATA = DatasetInfo(name="own", title="The user's own images", needs="the files themselves")
