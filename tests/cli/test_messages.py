"""What the terminal shows: flags in messages, whole tables, styles."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from command_line import complaint, here
from typer import rich_utils

import pour


def test_a_file_that_exists_is_replaced_with_a_flag(tmp_path, files):
    message = complaint(here("unlearn", files[0], "--method", "pour-p", "--forget", "3", "--out", files[1]))
    assert message.endswith("already exists; pass --overwrite to replace it.")
    assert "overwrite=" not in message


def test_options_of_a_method_are_flags(tmp_path):
    model = pour.build_model("resnet-digits", 70, in_channels=1, image_size=8)
    file = pour.save(model, tmp_path / "wide.safetensors")
    options = ["--method", "pour-p", "--direction", "decisions", "--out", tmp_path / "x.safetensors"]
    message = complaint(here("unlearn", file, "--forget", "3", *options))
    assert message.endswith("take --direction scores.")
    assert "direction=" not in message


def test_python_is_answered_in_arguments(tmp_path):
    file = pour.save(pour.build_model("resnet-digits", 10, in_channels=1, image_size=8), tmp_path / "x.safetensors")
    with pytest.raises(pour.UsageError, match=r"pass overwrite=True to replace it\.$"):
        pour.save(torch.nn.Linear(2, 2), file)


def test_the_install_command_is_printed_whole(capsys):
    info = SimpleNamespace(name="vit_small", summary="a network of another package", available=False, extra="vision")
    with mock.patch.object(pour, "list_models", return_value=[info]), mock.patch.dict("os.environ", {"COLUMNS": "60"}):
        assert 'pip install "pour-unlearning[vision]"' in here("models").stdout


@pytest.mark.parametrize("columns", [60, 200])
def test_piped_tables_follow_columns(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    widths = {len(line) for line in here("metrics").stdout.splitlines()}
    assert max(widths) <= columns
    assert max(widths) > columns - 60


@pytest.mark.parametrize("arguments", [["metrics"], ["metrics", "--help"]])
def test_no_color_removes_every_style(arguments, monkeypatch):
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "auto")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[1" in here(*arguments).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in here(*arguments).stdout


def test_a_folder_is_no_missing_file(tmp_path):
    with pytest.raises(pour.UsageError, match=r"is a folder; give the name of a file\.$"):
        pour.load(tmp_path)
