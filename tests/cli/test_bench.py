"""pour bench."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from bench_cells import keep, made_up, small_grid
from command_line import UNREAD, ReachedError, call, refusal, succeed_here

from pour.bench import Outcome, export_store, get_experiment
from pour.bench.grid import _failures, _Group, claim, requests_of
from pour.bench.shared_models import SharedModels
from pour.bench.store import read_experiment
from pour.errors import UsageError

pytestmark = pytest.mark.usefixtures("no_data")


def outcome(folder, failed=(), requests=()):
    return Outcome(out=folder, done=2, kept=1, failed=failed, requests=requests)


@pytest.mark.parametrize("quiet", [True, False])
def test_failed_cells_are_told(tmp_path, monkeypatch, quiet):
    grid = get_experiment("digits")
    keep(tmp_path, grid, made_up(grid, "pour-p", forget=(3,)))
    failed = ("delete-common, seed 0: It diverged at step 3.", "scrub-tuned, seed 1: It diverged at step 9.")
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome(tmp_path, failed))
    done = succeed_here("bench", "digits", "--out", tmp_path, *["--quiet"] * quiet)
    assert done.stderr.splitlines() == [f"failed: {sentence}" for sentence in failed]
    assert "2 cells computed, 1 were already stored" in done.stdout


@pytest.mark.parametrize(
    ("forget", "shown"), [((), ["three"]), (("5",), ["five"]), (("8", "5"), ["eight", "five"])], ids=str
)
def test_the_table_is_that_of_the_request(tmp_path, monkeypatch, forget, shown):
    grid = get_experiment("digits")
    names = {3: "three", 5: "five", 8: "eight"}
    keep(tmp_path, grid, *(made_up(grid, "pour-p", forget=(k,), forgotten_names=(v,)) for k, v in names.items()))
    requests = tuple((int(name),) for name in forget)
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome(tmp_path, requests=requests))
    options = [part for name in forget for part in ("--forget", name)]
    text = succeed_here("bench", "digits", "--out", tmp_path, *options).stdout
    assert re.findall(r"(\w+)\s+forgotten,", text) == shown


def test_names_of_requests_are_those_of_the_dataset(monkeypatch):
    class Named:
        num_classes, classes = 3, ("plane", "7", "cat")

    monkeypatch.setattr("pour.training.tasks.classify.load_dataset", lambda name, root, **_: Named)
    shared = SharedModels(get_experiment("cifar10"), Path("r"), None, "cpu", None)
    assert requests_of(shared, ["cat", "7", "0"]) == ((2,), (1,), (0,))
    assert requests_of(shared) == ((0,), (1,), (5,))


def test_results_of_another_experiment_are_not_taken_in(tmp_path):
    grid = get_experiment("cifar10")
    keep(tmp_path / "home", grid, made_up(grid, "pour-p"))
    tar = tmp_path / "cells.json.gz"
    export_store(tmp_path / "home", tar)
    there = tmp_path / "there"
    options = ["--out", there, "--import", tar]
    assert "contains results of cifar10, not of digits" in refusal("bench", "digits", *options)
    assert "unknown key colour" in refusal("bench", "digits", *options, "--set", "colour=1")
    assert "no experiment" in refusal("bench", "imagenet", *options)
    assert "Seeds are" in refusal("bench", "cifar10", *options, "--seeds", "some")
    assert not there.exists()
    again = tmp_path / "again.json.gz"
    assert "1 new cells from" in succeed_here("bench", "cifar10", *options, "--export", again).stdout
    assert again.read_bytes() == tar.read_bytes()


def test_results_without_a_name_are_not_taken_in(tmp_path):
    grid = get_experiment("cifar10")
    keep(tmp_path / "home", grid, made_up(grid, "pour-p"))
    (tmp_path / "home" / "experiment.json").unlink()
    export_store(tmp_path / "home", tmp_path / "cells.json.gz")
    options = ["--out", tmp_path / "there", "--import", tmp_path / "cells.json.gz"]
    assert "does not name its experiment" in refusal("bench", "cifar10", *options)
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize(
    "flags",
    [
        *(
            ["--seeds", 2],
            ["--methods", "pour-p"],
            ["--forget", 3],
            ["--jobs", 2],
            ["--device", "cpu"],
            ["--root", "x"],
        ),
        *(["--precision", "fp32"], ["--compile"], ["--ray", "local"], ["--tuning", "x"]),
    ],
)
def test_an_export_reads_no_flags_of_a_run(tmp_path, flags):
    grid, tar = get_experiment("digits"), tmp_path / "x.json.gz"
    keep(tmp_path / "runs", grid, made_up(grid, "pour-p", forget=(3,)))
    command = ["bench", "digits", "--out", tmp_path / "runs"]
    assert f"{flags[0]} {UNREAD} with --export" in refusal(*command, "--export", tar, *flags)
    assert f"--overwrite {UNREAD} without --export or --import" in refusal(*command, "--overwrite")
    succeed_here(*command, "--export", tar)
    succeed_here(*command, "--export", tar, "--overwrite")


def test_what_was_done_is_told_before_the_table(tmp_path, monkeypatch):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    stale = made_up(grid, "delete-tuned", forget=(3,), models="b")
    keep(store, grid, made_up(grid, "pour-p", forget=(3,)), stale)
    outcome = Outcome(out=store, done=4, kept=2, failed=("scrub-common, seed 0: It diverged.",))
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome)
    done = call("bench", "digits", "--out", store)
    assert isinstance(done.exception, UsageError)
    assert "with --seeds 0, --forget airplane and without --methods" in str(done.exception)
    assert "4 cells computed, 2 were already stored" in done.output
    assert "failed: scrub-common" in done.output


def test_a_class_named_twice_has_one_table(tmp_path, monkeypatch):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    keep(store, grid, made_up(grid, "pour-p", forget=(3,)))
    outcome = Outcome(out=store, done=0, kept=1, failed=(), requests=((3,),))
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome)
    done = succeed_here("bench", "digits", "--out", store, "--forget", 3, "--forget", 3)
    assert done.stdout.count("digits, resnet-digits") == 1


def test_names_of_classes_are_text(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"n1 caf\xe9\n")
    sentence = refusal("bench", "zeroshot", "--set", f"names={tmp_path / 'names.txt'}", "--out", tmp_path / "runs")
    assert "names.txt is no text in UTF-8" in sentence


@pytest.fixture
def cifar(tmp_path):
    """A few made-up images under the name of CIFAR-10."""
    generator = np.random.default_rng(0)
    arrays = {f"{part}_x": generator.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8) for part in ("train", "test")}
    folder = tmp_path / "data"
    folder.mkdir()
    np.savez(folder / "cifar10.npz", **arrays, train_y=np.arange(20) % 10, test_y=np.arange(20) % 10)
    return folder


@pytest.mark.parametrize("command", ["bench", "study"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--set", "architecture=nosuch"], "no architecture 'nosuch'"),
        (["--precision", "fp64"], "fp32 or bf16"),
        (["--root", "nowhere"], "cifar10 is not under nowhere"),
    ],
)
def test_wrong_use_claims_no_folder(tmp_path, cifar, command, flags, words):
    out = tmp_path / "runs" / "z"
    assert words in refusal(command, "cifar10", "--device", "cpu", "--out", out, *flags)
    assert not out.exists()


def test_a_new_folder_is_claimed_once_it_is_sure(tmp_path, cifar):
    shared = SharedModels(get_experiment("cifar10"), tmp_path / "runs", cifar, "cpu", None)
    state = torch.get_rng_state()
    claim(shared)
    assert torch.equal(torch.get_rng_state(), state)
    assert read_experiment(tmp_path / "runs").name == "cifar10"
    # Results that are there can be shown without the data.
    claim(SharedModels(get_experiment("cifar10"), tmp_path / "runs", tmp_path / "nowhere", "cpu", None))


def test_failed_cells_of_several_requests_name_the_classes(tmp_path):
    grid = get_experiment("digits")
    row = next(row for row in grid.rows if row.name == "delete-common")
    requests = {(3,): ("three",), (5, 8): ("five", "eight")}
    for forget, names in requests.items():
        keep(tmp_path, grid, made_up(grid, row.name, forget=forget, forgotten_names=names, failed="It diverged."))
    groups = [_Group(forget, 0, (row,)) for forget in requests]
    assert _failures(tmp_path, groups) == [
        "delete-common, class three, seed 0: It diverged.",
        "delete-common, classes five, eight, seed 0: It diverged.",
    ]


def test_a_users_file_is_benched_tuned_and_studied(tmp_path, monkeypatch):
    seen = []

    def reached(experiment, *_, **__):
        seen.append((experiment.name, experiment.recipe.epochs, experiment.seeds))
        raise ReachedError

    for place in ("run_experiment", "tune_experiment", "study.run_study"):
        monkeypatch.setattr(f"pour.bench.{place}", reached)
    (tmp_path / "mine.toml").write_text('base = "digits"\nseeds = [4]\n')
    for command in ("bench", "tune", "study"):
        call(command, "mine.toml", "--set", "recipe.epochs=3")
    assert seen == [("mine", 3, (4,))] * 3
    (tmp_path / "wrong.toml").write_text('base = "digits"\nseed = [4]\n')
    for command in ("bench", "tune", "study"):
        assert "wrong.toml has the unknown key seed" in refusal(command, "wrong.toml")


def test_what_is_wrong_with_a_grid_is_told_before_results_are_taken_in(tmp_path):
    grid = small_grid()
    keep(tmp_path / "home", grid, made_up(grid, "pour-p"))
    succeed_here("bench", "digits", "--out", tmp_path / "home", "--export", tmp_path / "x.json.gz")
    wrong = (
        ["--methods", "nosuch"],
        ["--jobs", 0],
        ["--forget", "nosuch"],
        ["--device", "tpu"],
        ["--precision", "foo"],
    )
    for flags in wrong:
        refusal("bench", "digits", "--out", tmp_path / "there", "--import", tmp_path / "x.json.gz", *flags)
        assert not (tmp_path / "there").exists()
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refusal("bench", "digits", "--out", tmp_path / "file", "--import", tmp_path / "x.json.gz")
