"""Memory of a process that is ours alone, such as the command line's."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

# Parameters of glibc's mallopt, and the largest values that it takes.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_SETTINGS = {_MMAP_THRESHOLD: 32 * 2**20, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 * 2**20}
_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Keep what is freed for the next allocation instead of handing it back to the system; says whether that is set.

    On a CPU every layer of a network makes maps of some megabytes and frees them. By default glibc asks the system for
    each anew, and clearing the pages takes a fifth of the time of a ResNet-18. What a user has set stays as it is.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(mallopt(parameter, value) == 1 for parameter, value in _SETTINGS.items())
