"""pour tune."""

from __future__ import annotations

import pytest
from command_line import help_of, refusal

pytestmark = pytest.mark.usefixtures("no_data")


def test_a_file_is_no_folder_for_trials(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "file is a file; give a folder" in refusal("tune", "digits", "--device", "cpu", "--out", tmp_path / "file")


def test_the_help_of_tune_is_true(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    text = help_of("tune")
    assert "zeroshot has no method to tune" in refusal("tune", "zeroshot")
    assert "tuning_forget of the experiment" in text
    assert "no experiment 'imagenet'" in refusal("tune", "imagenet")
