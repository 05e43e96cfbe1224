"""Record the provenance of a result: command, versions, device, commit and date."""

from __future__ import annotations

import datetime
import os
import platform
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pour._version import __version__

__all__ = ["circumstances"]


def circumstances(device: torch.device, precision: str | None = None) -> dict[str, Any]:
    """Return the command line, versions, device, commit of the source tree and date of this process."""
    return {
        "command": shlex.join(["pour", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "precision": precision,
        "versions": {"pour": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "commit": _commit(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


@cache
def _commit() -> str | None:
    """Return the commit of the source tree, or the variable `POUR_COMMIT` if it is set; None without a source tree.

    The commit is read once: a process that runs for hours has the code that it started with.
    """
    if "POUR_COMMIT" in os.environ:
        return os.environ["POUR_COMMIT"]
    folder = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
