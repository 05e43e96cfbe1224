"""Install a package without network, and run code in a process that has it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from command_line import ENVIRONMENT

if TYPE_CHECKING:
    from pathlib import Path

OFFLINE = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")


@dataclass(frozen=True)
class Installed:
    """A folder with an installed package."""

    site: Path

    def run(self, code: str, cwd: Path) -> str:
        """Run code in a new process that finds the package, and return what it printed."""
        path = os.pathsep.join([str(self.site), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=300,
            cwd=cwd,
            env={**ENVIRONMENT, "PYTHONPATH": path},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        return done.stdout


def install(source: Path, folder: Path) -> Installed:
    """Install the package in ``source`` with pip, in a folder of its own."""
    # Building writes into the folder of the package.
    copy = shutil.copytree(source, folder / "source")
    arguments = ["-m", "pip", "install", *OFFLINE, "--target", str(folder / "site"), str(copy)]
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return Installed(folder / "site")
