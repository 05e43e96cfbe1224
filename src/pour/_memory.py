"""Set the memory allocator of a process that runs only pour, such as a command, and return freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys

__all__ = ["keep_freed_memory", "release_freed_memory"]

# Parameters of glibc's mallopt, and their largest values.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {_MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Keep freed memory for the next allocation instead of returning it to the system. Return whether this works.

    On a CPU every layer of a network makes maps of some megabytes and frees them. By default glibc asks the system for
    each map again, and clearing the pages takes a fifth of the time of a ResNet-18. What a user has set stays as it is.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in _SETTINGS.items())


def release_freed_memory() -> None:
    """Return the freed memory of glibc to the system, after work that needs far more than the following work."""
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
