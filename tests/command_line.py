"""Commands in the tests' own process."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings
from unittest import mock

from pour.cli import main


def here(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that has little to do, or is refused; a process of its own would take seconds to start."""
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
