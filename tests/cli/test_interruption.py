"""Ctrl-C: one sentence, and the same command goes on with what is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from command_line import ENVIRONMENT, process

if TYPE_CHECKING:
    from pathlib import Path

RESUMES = "pour: Interrupted. The same command resumes here."

# Python imports this module at its start. It presses Ctrl-C when another module is imported.
_PRESS = """
import os, signal, sys

class Press:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Press())
"""


@pytest.fixture(autouse=True)
def _ctrl_c_reaches_commands():
    """A command inherits an ignored Ctrl-C if the tests run in the background."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before or signal.SIG_DFL)


def interrupted(*arguments: object, cwd: Path, until: Path) -> tuple[int, str]:
    """Press Ctrl-C in a command once a file ``until`` exists. Return the exit code and the messages."""
    command = [sys.executable, "-m", "pour", *map(str, arguments)]
    running = subprocess.Popen(command, cwd=cwd, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    while not list(cwd.glob(str(until))):
        assert running.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    return running.wait(), running.communicate()[1]


@pytest.mark.parametrize("module", ["rich", "pour.cli.audit", "torch"])
def test_an_interrupted_import_is_one_sentence(tmp_path, module):
    (tmp_path / "sitecustomize.py").write_text(_PRESS.format(module=module))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = process("unlearn", "m.safetensors", "--out", "x.safetensors", cwd=tmp_path, PYTHONPATH=path)
    # A process that ends by the signal itself has the negative code.
    assert done.returncode in (130, -signal.SIGINT), done.stderr
    assert done.stderr.startswith("pour: Interrupted")
    assert done.stderr.count("\n") == 1
    assert "resumes" not in done.stderr


def test_nothing_is_promised_before_the_first_save(tmp_path):
    options = ["train", "--epochs", 500, "--save-every", 500, "--quiet", "--out", "x.safetensors"]
    (tmp_path / "sitecustomize.py").write_text(_PRESS.format(module="pour._progress"))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = process(*options, cwd=tmp_path, PYTHONPATH=path)
    assert done.stderr == "pour: Interrupted. Nothing was written; start the same command again.\n"


def test_a_command_in_the_background_ignores_ctrl_c(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_PRESS.format(module="pour.cli.models"))
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    program = f"trap '' INT; exec {sys.executable} -m pour weights"
    done = subprocess.run(
        ["sh", "-c", program], env={**ENVIRONMENT, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "values", "expected"),
    [
        ("unlearn", {"out": "x.safetensors", "overwrite": False}, "written; the same command needs --overwrite."),
        ("export", {"out": "folder", "overwrite": False}, "folder was written; the same command needs --overwrite."),
        ("demo", {"out": "folder"}, "folder was written; the same command replaces it."),
        ("audit", {"out": None, "report": "none.html"}, "Nothing was written; start the same command again."),
        ("audit", {"out": None, "cache": "folder"}, "The same command resumes here."),
        ("tune", {"out": None}, "The same command resumes here."),
    ],
)
def test_the_message_says_what_was_written(tmp_path, command, values, expected):
    from pour.cli.interruption import after_interruption

    (tmp_path / "folder").mkdir()
    for name in ("x.safetensors", "folder/y"):
        (tmp_path / name).write_text("")
    paths = {name: tmp_path / value if isinstance(value, str) else value for name, value in values.items()}
    assert after_interruption(command, paths, started=0).endswith(expected)
    later = after_interruption(command, paths, started=2e10)
    assert later.endswith("here." if "resumes" in expected else "Nothing was written; start the same command again.")


@pytest.mark.slow
def test_an_interrupted_training_resumes(tmp_path):
    options = ["train", "--data", "digits", "--epochs", 6, "--save-every", 0, "--quiet", "--out", "x.safetensors"]
    code, message = interrupted(*options, cwd=tmp_path, until="x.safetensors.resume")
    assert (code in (130, -signal.SIGINT), message.strip()) == (True, RESUMES)
    assert not (tmp_path / "x.safetensors").exists()
    done = process(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    training = json.loads((tmp_path / "x.json").read_text())["training"]
    # Only the epochs after the interruption were trained.
    assert len(training["epoch_seconds"]) < 6
    assert len(training["losses"]) > training["images"] / 128


@pytest.mark.slow
def test_an_interrupted_grid_resumes(tmp_path):
    options = ["bench", "digits", "--methods", "masked-head", "--methods", "scrub", "--seeds", "1,", "--forget", 3]
    options += ["--set", "recipe.epochs=1", "--quiet"]
    code, message = interrupted(*options, cwd=tmp_path, until="runs/digits/models/*/original.json")
    assert (code in (130, -signal.SIGINT), message.strip()) == (True, RESUMES)
    (original,) = (tmp_path / "runs/digits/models").glob("*/original.safetensors")
    before = original.stat().st_mtime_ns
    done = process(*options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert original.stat().st_mtime_ns == before
