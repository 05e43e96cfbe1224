"""Run commands of pour, in a new process or in the process of the tests."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING
from unittest import mock

from typer.testing import CliRunner

from pour.cli import main, make_app
from pour.errors import UsageError

if TYPE_CHECKING:
    from click.testing import Result

UNREAD = "has no use"
"""Words of the message about a flag that a command does not read."""
GREY = {"in_channels": 1, "image_size": 8}
"""Options of a network for the digits."""
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


class ReachedError(Exception):
    """Raised in place of the work of a command."""


def call(*arguments: object) -> Result:
    """Run a command in this process and keep its exception."""
    given = list(map(str, arguments))
    return CliRunner().invoke(make_app(given), given)


def succeed_here(*arguments: object) -> Result:
    """Run a command in this process, which must succeed."""
    done = call(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def refusal(*arguments: object) -> str:
    """Return the message of a command that must be refused."""
    done = call(*arguments)
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    return str(done.exception)


def help_of(*arguments: object) -> str:
    """Return the help of a command without its frames."""
    text = succeed_here(*arguments, "--help").output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def succeed(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a new process, which must succeed."""
    done = process(*arguments)
    assert done.returncode == 0, done.stderr
    return done


def show(*arguments: object) -> str:
    """Return the output of a short command, which must succeed."""
    done = here(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def complaint(done: subprocess.CompletedProcess[str], code: int = 2) -> str:
    """Return the message of a command that failed with this exit code: one sentence."""
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pour: ")
    assert lines[0].endswith((".", "?"))
    return lines[0]
