"""Rules for all commands, in real processes and in this one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from command_line import complaint, here, process, show, succeed

import pour


def test_the_script_is_installed():
    done = subprocess.run([Path(sys.executable).with_name("pour"), "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == pour.__version__


def test_help_lists_the_commands():
    text = succeed("--help").stdout
    for command in ("demo", "train", "unlearn", "audit", "tune", "bench", "table", "view", "history", "methods"):
        assert command in text
    assert "pour demo" in text


def test_tables(tmp_path):
    assert "pour-a" in show("methods")
    assert "rus_o" in show("metrics")
    assert "resnet18" in show("models")
    shown = show("datasets", "--root", tmp_path)
    assert "cifar100" in shown
    assert "digits" in shown


def _plain_safetensors(folder):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, folder / "plain.safetensors")
    return folder / "plain.safetensors"


def test_bad_use(trained, tmp_path):
    out = tmp_path / "out.safetensors"
    assert "did you mean 'pour-p'" in complaint(
        process("unlearn", trained, "--method", "pour_p", "--forget", 3, "--out", out)
    )
    assert "images of the forgotten classes; name their dataset with --data" in complaint(
        here("unlearn", trained, "--forget", "3", "--out", out)
    )
    assert "already exists" in complaint(
        here("unlearn", trained, "--method", "pour-p", "--forget", 3, "--out", trained)
    )
    assert "digits" in complaint(here("train", "--data", "digit", "--out", out))
    assert "cifar10 is not under" in complaint(here("train", "--data", "cifar10", "--root", tmp_path, "--out", out))
    assert "no architecture" in complaint(here("train", "--arch", "resnet", "--out", out))
    assert "learning rate" in complaint(here("train", "--lr", "-1", "--out", out))
    assert "not a device" in complaint(here("train", "--device", "gpu please", "--out", out))
    assert "no recipe" in complaint(here("train", "--recipe", "slow", "--out", out))
    assert "no experiment" in complaint(here("bench", "imagenet", "--out", tmp_path / "b"))
    assert "not written by pour" in complaint(here("history", _plain_safetensors(tmp_path)))
    missing = here("unlearn", trained, "--forget", "3")
    assert missing.returncode == 2
    assert "Missing option '--out'" in missing.stderr
    assert not out.exists()
