"""Run commands of pour, in a new process or in the process of the tests."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import warnings
from unittest import mock

from pour.cli import main

# Each worker of the tests has one core.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "160"}


def process(
    *arguments: object, cwd: os.PathLike[str] | None = None, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "pour", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=cwd,
        env={**ENVIRONMENT, **{name: str(value) for name, value in environment.items()}},
        check=False,
    )


def here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a short command in this process, because a new process takes seconds to start."""
    out, complaints = io.StringIO(), io.StringIO()
    given = ["pour", *map(str, arguments)]
    code: object = 0
    with (
        mock.patch.object(sys, "argv", given),
        mock.patch.object(warnings, "showwarning", warnings.showwarning),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(complaints),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(given, int(code or 0), out.getvalue(), complaints.getvalue())  # type: ignore[call-overload]
