"""What a number needs beside it to be believed: command, versions, device, commit and date."""

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
    """The command line, versions, device, commit of the source tree and date of this process."""
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
    """The commit of the source tree, where pour runs from one, or as ``POUR_COMMIT`` says for a copy without it.

    Asked once: a process that runs for hours has the code that it started with, whatever is committed meanwhile.
    """
    if "POUR_COMMIT" in os.environ:
        return os.environ["POUR_COMMIT"]
    here = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(  # noqa: S603
            ["git", "-C", str(here), "rev-parse", "--short", "HEAD"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
