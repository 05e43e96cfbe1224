"""A fourth task in a package of its own, which pip installs as it installs any other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from command_line import process

if TYPE_CHECKING:
    from collections.abc import Callable

PACKAGE = Path(__file__).parent / "pour-tags"
OFFLINE = ("--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def pour(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Run a command of pour in a process that has the package; return what it printed."""
    site = tmp_path_factory.mktemp("site")
    # Building writes into the folder of the package.
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / PACKAGE.name)
    install = ["-m", "pip", "install", *OFFLINE, "--target", str(site), str(source)]
    done = subprocess.run([sys.executable, *install], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = tmp_path_factory.mktemp("work")
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])

    def run(*arguments: object) -> str:
        done = process(*arguments, cwd=folder, PYTHONPATH=path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_train(pour: Callable[..., str], tmp_path: Path) -> None:
    out = tmp_path / "m.safetensors"
    printed = pour("train", "--data", "digit-tags", "--epochs", 2, "--device", "cpu", "--out", out)
    assert "prime" in printed
    facts = json.loads(out.with_suffix(".json").read_text())
    assert facts["task"] == "tags"
    assert facts["tag_f1"]["test"]["even"] > 0.8
