"""pour table."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_cells import keep, made_up
from command_line import UNREAD, refusal, succeed_here

from pour.bench import get_experiment

pytestmark = pytest.mark.usefixtures("no_data")
ROOT = Path(__file__).resolve().parent.parent.parent


def test_a_table_replaces_files_only_when_told(tmp_path):
    grid = get_experiment("digits")
    keep(tmp_path / "runs", grid, made_up(grid, "pour-p", forget=(3,)))
    out = tmp_path / "table.md"
    out.write_text("mine")
    command = ["table", tmp_path / "runs", "--format", "markdown"]
    assert "table.md already exists" in refusal(*command, "--out", out)
    assert f"--overwrite {UNREAD} without --out" in refusal(*command, "--overwrite")
    assert "runs is a folder" in refusal(*command, "--out", tmp_path / "runs", "--overwrite")
    assert out.read_text() == "mine"
    succeed_here(*command, "--out", out, "--overwrite")
    assert "POUR-P" in out.read_text()


def test_a_store_beside_another(tmp_path):
    grid = get_experiment("digits")
    for name, value in (("mine", 0.25), ("yours", 0.5)):
        keep(tmp_path / name, grid, made_up(grid, "pour-p", forget=(3,), values={"acc_f": value}))
    command = ["table", tmp_path / "mine", "--columns", "acc_f", "--format", "markdown"]
    shown = succeed_here(*command, "--against", tmp_path / "yours").stdout
    assert f"| POUR-P |  | **25.00** |\n| POUR-P | {tmp_path / 'yours'} | 50.00 |" in shown
    assert "takes paper or results of pour bench, but nowhere does not exist" in refusal(
        *command, "--against", "nowhere"
    )
    assert f"{tmp_path} contains no results" in refusal(*command, "--against", tmp_path)


def test_classes_side_by_side(tmp_path):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    keep(store, grid, made_up(grid, "pour-p", forget=(3,), values={"acc_f": 0.25}, forgotten_names=("3",)))
    assert "results of forgetting 3 alone" in refusal("table", store, "--by-class")
    keep(store, grid, made_up(grid, "pour-p", forget=(5,), values={"acc_f": 0.5}, forgotten_names=("5",)))
    for flag in (["--forget", 3], ["--against", "paper"]):
        assert f"{flag[0]} {UNREAD} with --by-class" in refusal("table", store, "--by-class", *flag)
    shown = succeed_here("table", store, "--by-class", "--columns", "acc_f", "--format", "markdown").stdout
    assert "| method | setting | Acc_f, 3 ↓ | Acc_f, 5 ↓ |" in shown
    assert "| POUR-P |  | **25.00** | **50.00** |" in shown


def test_stores_of_other_kinds_are_not_set_above_each_other(tmp_path):
    results = ROOT / "results"
    for other in ("zeroshot", "camvid"):
        assert "; give another folder" in refusal(
            "table", results / "cifar100.json.gz", "--against", results / f"{other}.json.gz"
        )
