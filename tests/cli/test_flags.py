"""Flags of the command line in one process: each is read or refused, and results are told."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from bench_cells import keep, made_up, small_grid
from typer.testing import CliRunner

import pour
from pour.bench import Outcome, export_store, get_experiment
from pour.bench.experiment import EXPERIMENTS
from pour.bench.grid import _failures, _Group, claim, requests_of
from pour.bench.shared_models import SharedModels
from pour.bench.store import read_experiment
from pour.cli import make_app
from pour.cli.flags import refuse_unread
from pour.errors import UsageError
from pour.training import RECIPES

ROOT = Path(__file__).resolve().parent.parent.parent
UNREAD = "has no use"
GREY = {"in_channels": 1, "image_size": 8}


class ReachedError(Exception):
    """The work itself, which these tests do not do."""


def call(*arguments):
    given = list(map(str, arguments))
    return CliRunner().invoke(make_app(given), given)


def succeed(*arguments):
    done = call(*arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return done


def refusal(*arguments):
    """The sentence of a refused command."""
    done = call(*arguments)
    assert isinstance(done.exception, UsageError), (done.output, done.exception)
    return str(done.exception)


@pytest.fixture(autouse=True)
def _no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("POUR_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("value", [0, "", 0.0, ["x"], True, Path()])
def test_whatever_was_given_counts(value):
    with pytest.raises(UsageError, match=r"^--x has no use here; leave it out\.$"):
        refuse_unread({"--y": None, "--x": value}, "here")


def test_what_was_not_given_does_not_count():
    refuse_unread({"--a": None, "--b": False, "--c": []}, "here")


SCENES = ("with smp:deeplabv3plus:tu-tf_efficientnet_lite0 on camvid", ["--data", "camvid"])
CLIP = ("with clip-resnet18 on cifar10", ["--data", "cifar10", "--arch", "clip-resnet18"])
UNREAD_IN_TRAINING = [
    *[(SCENES, flag) for flag in (["--freeze-backbone"], ["--image-size", 8])],
    *[(CLIP, flag) for flag in (["--weights", "x"], ["--image-size", 8], ["--freeze-backbone"])],
]


@pytest.mark.parametrize(("kind", "flag"), UNREAD_IN_TRAINING)
def test_training_refuses_what_it_does_not_read(kind, flag):
    where, arguments = kind
    assert f"{flag[0]} {UNREAD} {where};" in refusal("train", *arguments, *flag, "--out", "m.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "camvid", "--set", "head=simplex"], "The task 'segment' has no setting 'head'; it has weights"),
        (["--data", "camvid", "--set", "text=x"], "The task 'segment' has no setting 'text'"),
        (
            ["--data", "cifar10", "--arch", "clip-resnet18", "--set", "limit=1"],
            "The task 'match' has no setting 'limit'",
        ),
        (["--data", "cifar10", "--set", "limit=1"], "The task 'classify' has no setting 'limit'"),
        (["--data", "cifar10", "--set", "text=x"], "The task 'classify' has no setting 'text'"),
        (["--data", "cifar10", "--set", "enlarge=2"], "The task 'classify' has no setting 'enlarge'"),
        (
            ["--data", "cifar10", "--arch", "clip-resnet18", "--set", "image_size=8"],
            "The task 'match' has no setting 'image_size'",
        ),
        (["--data", "cifar10", "--set", "head=simplex"], "head='simplex' has no use without freeze_backbone"),
        (
            ["--data", "camvid", "--set", "enlarge=two"],
            "has the value 'two' for enlarge, which must be a valid integer",
        ),
        (["--set", "enlarge"], "--set takes KEY=VALUE, such as enlarge=2, but got 'enlarge'"),
    ],
)
def test_training_refuses_settings_that_its_task_does_not_have(arguments, words):
    assert words in refusal("train", *arguments, "--out", "m.safetensors")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "camvid", "--set", "limit=1", "--set", "enlarge=2", "--weights", "x"], "camvid is not under"),
        (["--arch", "clip-resnet-digits", "--set", "text=absent.npz"], "absent.npz"),
        (["--freeze-backbone", "--set", "head=simplex", "--image-size", 8], "pass the backbone's weights"),
        (["--image-size", 16], "takes images as they are"),
    ],
)
def test_training_reads_what_it_does_not_refuse(arguments, words):
    sentence = refusal("train", *arguments, "--out", "m.safetensors")
    assert words in sentence
    assert UNREAD not in sentence


@pytest.mark.parametrize("flag", [["--relearn"], ["--layers"], ["--limit", 5]])
def test_an_audit_of_scenes_refuses_what_it_does_not_read(flag):
    options = ["--data", "camvid", "--forget", "car"]
    assert f"{flag[0]} {UNREAD} for the task segment" in refusal("audit", "a", "b", *options, *flag)


UNREAD_WITH_WORDS = [
    ["--method", "pour-d"],
    ["--steps", 5],
    ["--no-augment"],
    ["--data", "digits"],
    ["--root", "x"],
    ["--arch", "resnet18"],
    ["--mean", 0.5],
    ["--num-classes", 10],
    ["--recipe", "fast"],
    ["--device", "cpu"],
    ["--precision", "fp32"],
    ["--compile"],
]


@pytest.mark.parametrize("flag", UNREAD_WITH_WORDS, ids=lambda flag: flag[0])
def test_forgetting_by_words_refuses_what_it_does_not_read(flag):
    name = flag[0].replace("--no-", "--")
    sentence = refusal("unlearn", "m.safetensors", "--concept", "a cat", *flag, "--out", "f.safetensors")
    assert sentence.startswith(f"{name} {UNREAD} with --concept;")


@pytest.mark.parametrize(
    ("flag", "where"),
    [
        (["--text", "x"], "with --forget"),
        (["--concept-part", "specific"], "with --forget"),
        (["--root", "x"], "without --data"),
        (["--recipe", "fast"], "without --data"),
        (["--num-classes", 10], "without --arch"),
        (["--num-classes", 10, "--arch", "resnet18", "--data", "digits"], "with --data"),
    ],
)
def test_forgetting_classes_refuses_what_it_does_not_read(flag, where):
    options = ["--method", "pour-p", "--forget", 3, "--out", "f.safetensors"]
    assert f"{flag[0]} {UNREAD} {where};" in refusal("unlearn", "m.safetensors", *options, *flag)


def test_weights_are_not_listed_into_a_file():
    assert f"--out {UNREAD} without a name" in refusal("weights", "--out", "w.safetensors")


def documented():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    kinds = "train|unlearn|audit|bench|table|tune|study"
    return [
        command
        for page in pages
        for command in re.findall(rf"^(?:\$ )?pour +((?:{kinds}) .+)$", page.read_text(), flags=re.MULTILINE)
    ]


def test_no_documented_command_is_refused(monkeypatch):
    def reached(*_, **__):
        raise ReachedError

    for name in ("load", "load_dataset"):
        monkeypatch.setattr(pour, name, reached)
    for task in ("classify", "match"):
        monkeypatch.setattr(f"pour.training.tasks.{task}.load_dataset", reached)
    for place in ("run_experiment", "tune_experiment", "study.run_study"):
        monkeypatch.setattr(f"pour.bench.{place}", reached)
    commands = documented()
    assert len(commands) > 25
    for command in commands:
        done = call(*shlex.split(command, comments=True))
        # Files and data that are not here are the only thing that may be missing.
        absent = re.search("There is no file|holds no results|is not under", str(done.exception))
        assert isinstance(done.exception, ReachedError) or absent, (command, done.output, done.exception)


def outcome(folder, failed=(), requests=()):
    return Outcome(out=folder, done=2, kept=1, failed=failed, requests=requests)


@pytest.mark.parametrize("quiet", [True, False])
def test_failed_cells_are_told(tmp_path, monkeypatch, quiet):
    grid = get_experiment("digits")
    keep(tmp_path, grid, made_up(grid, "pour-p", forget=(3,)))
    failed = ("delete-common, seed 0: It diverged at step 3.", "scrub-tuned, seed 1: It diverged at step 9.")
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome(tmp_path, failed))
    done = succeed("bench", "digits", "--out", tmp_path, *["--quiet"] * quiet)
    assert done.stderr.splitlines() == [f"failed: {sentence}" for sentence in failed]
    assert "2 cells made, 1 were there" in done.stdout


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
    text = succeed("bench", "digits", "--out", tmp_path, *options).stdout
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
    assert "holds results of cifar10, not of digits" in refusal("bench", "digits", *options)
    assert "unknown key colour" in refusal("bench", "digits", *options, "--set", "colour=1")
    assert "no experiment" in refusal("bench", "imagenet", *options)
    assert "Seeds are" in refusal("bench", "cifar10", *options, "--seeds", "some")
    assert not there.exists()
    again = tmp_path / "again.json.gz"
    assert "1 new cells from" in succeed("bench", "cifar10", *options, "--export", again).stdout
    assert again.read_bytes() == tar.read_bytes()


def test_results_without_a_name_are_not_taken_in(tmp_path):
    grid = get_experiment("cifar10")
    keep(tmp_path / "home", grid, made_up(grid, "pour-p"))
    (tmp_path / "home" / "experiment.json").unlink()
    export_store(tmp_path / "home", tmp_path / "cells.json.gz")
    options = ["--out", tmp_path / "there", "--import", tmp_path / "cells.json.gz"]
    assert "does not say whose results it holds" in refusal("bench", "cifar10", *options)
    assert not (tmp_path / "there").exists()


@pytest.fixture
def plain(tmp_path):
    """Makes a file of weights without a normalisation, as other code would save them."""

    def make(name="plain.pt", **options):
        state = pour.build_model("resnet-digits", 10, **options).state_dict()
        torch.save({key: value for key, value in state.items() if not key.startswith("normalize.")}, tmp_path / name)
        return tmp_path / name

    return make


FORGET = ["--method", "pour-p", "--forget", "3", "--quiet"]


@pytest.mark.parametrize(
    ("given", "mean", "std"),
    [
        (["--mean", "0.1,0.2,0.3", "--std", "0.5"], [0.1, 0.2, 0.3], [0.5, 0.5, 0.5]),
        (["--mean", "0.5"], [0.5, 0.5, 0.5], None),
        ([], None, None),
    ],
)
def test_plain_weights_take_a_normalisation(tmp_path, plain, given, mean, std):
    out = tmp_path / "f.safetensors"
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    succeed("unlearn", plain(), *network, *given, *FORGET, "--out", out)
    found = pour.load(out).normalize
    own = pour.build_model("resnet-digits", 10).normalize
    torch.testing.assert_close(found.mean.flatten(), own.mean.flatten() if mean is None else torch.tensor(mean))
    torch.testing.assert_close(found.std.flatten(), own.std.flatten() if std is None else torch.tensor(std))


def test_one_number_serves_grey_images(tmp_path, plain):
    out = tmp_path / "f.safetensors"
    network = ["--arch", "resnet-digits", "--data", "digits", "--mean", 0.3, "--std", 0.2]
    succeed("unlearn", plain(**GREY), *network, *FORGET, "--out", out)
    assert pour.load(out).normalize.mean.flatten().tolist() == pytest.approx([0.3])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--mean", "0.5,0.5"], "--mean has 2 numbers for 3 channels"),
        (["--std", "1,1,1,1"], "--std has 4 numbers for 3 channels"),
        (["--mean", "half"], "--mean must be one number or one per channel"),
        (["--std", "0"], "deviations above 0"),
    ],
)
def test_wrong_normalisations_are_told(tmp_path, plain, given, words):
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    assert words in refusal("unlearn", plain(), *network, *given, *FORGET, "--out", tmp_path / "f.safetensors")
    assert not (tmp_path / "f.safetensors").exists()


def test_a_file_with_a_normalisation_takes_no_other(tmp_path, plain):
    model = pour.build_model("resnet-digits", 10)
    own, state = pour.save(model, tmp_path / "own.safetensors"), tmp_path / "state.pt"
    torch.save(model.state_dict(), state)
    options = [*FORGET, "--out", tmp_path / "f.safetensors", "--mean", 0.5]
    assert f"--mean {UNREAD} without --arch" in refusal("unlearn", own, *options)
    network = ["--arch", "resnet-digits", "--num-classes", 10]
    for file in (own, state):
        sentence = refusal("unlearn", file, *network, *options)
        assert f"--mean {UNREAD} with {file}; it contains a normalisation" in sentence


def test_an_audit_gives_it_to_the_plain_files_alone(tmp_path, plain, monkeypatch):
    seen = {}

    def audit(**models):
        seen.update(models)
        raise ReachedError

    monkeypatch.setattr(pour, "audit", audit)
    own = pour.save(pour.build_model("resnet-digits", 10, mean=[0.4], **GREY), tmp_path / "own.safetensors")
    options = ["--data", "digits", "--forget", 3, "--arch", "resnet-digits", "--mean", 0.3]
    assert isinstance(call("audit", plain(**GREY), own, *options).exception, ReachedError)
    means = [seen[role].normalize.mean.item() for role in ("original", "unlearned")]
    assert means == pytest.approx([0.3, 0.4])
    assert f"--mean {UNREAD} with {own}" in refusal("audit", own, own, *options)


@pytest.mark.parametrize("command", ["audit", "unlearn"])
def test_the_normalisation_is_in_the_help(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = succeed(command, "--help").output
    assert "--mean" in text
    assert "--std" in text


@pytest.fixture
def files(tmp_path):
    """Two models of pour that are alike."""
    model = pour.build_model("resnet-digits", 10, **GREY)
    return [pour.save(model, tmp_path / f"{name}.safetensors") for name in ("original", "unlearned")]


@pytest.fixture
def no_audit(monkeypatch):
    def reached(*_, **__):
        raise ReachedError

    monkeypatch.setattr(pour, "audit", reached)
    monkeypatch.setattr(pour, "load_dataset", reached)


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize(
    ("options", "there", "words"),
    [
        (["--out", "a.json"], "a.json", "a.json already exists"),
        (["--report", "a.html"], "a.html", "a.html already exists"),
        (["--report", "other.html"], "other.json", "other.json already exists"),
    ],
)
def test_an_audit_replaces_files_only_when_told(files, tmp_path, options, there, words):
    (tmp_path / there).write_text("mine")
    before = sorted(tmp_path.iterdir())
    command = ["audit", *files, "--forget", 3, *options]
    assert words in refusal(*command)
    assert "--overwrite in a command" in refusal(*command)
    assert isinstance(call(*command, "--overwrite").exception, ReachedError)
    assert (tmp_path / there).read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before


def test_the_file_beside_a_model_is_not_replaced_either(files, tmp_path):
    """It may be somebody's own, or what is left to know of a model that is gone."""
    (tmp_path / "new.json").write_text("mine")
    train = ["train", "--data", "digits", "--out", tmp_path / "new.safetensors"]
    unlearn = ["unlearn", files[0], "--forget", 3, "--method", "pour-p", "--out", tmp_path / "new.safetensors"]
    for command in (train, [*train[:2], "camvid", *train[3:]], unlearn):
        assert "new.json already exists" in refusal(*command)
    assert (tmp_path / "new.json").read_text() == "mine"
    assert not (tmp_path / "new.safetensors").exists()
    succeed(*unlearn, "--overwrite")
    assert "pour-p" in (tmp_path / "new.json").read_text()


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--report", "folder"], "folder is a folder"),
        (["--report", "folder.html"], "folder.json is a folder"),
        (["--report", "original.safetensors/a.html"], "original.safetensors is a file and no folder"),
        (["--report", "a.json"], "call the page of --report [*].html"),
        (["--report", "a.html", "--out", "a.html"], "call the page of --report [*].html"),
        (["--out", "folder"], "folder is a folder"),
        ([], "--overwrite has no use without --out or --report"),
    ],
)
def test_an_audit_looks_at_its_targets_first(files, tmp_path, options, words):
    for name in ("folder", "folder.json"):
        (tmp_path / name).mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert re.search(words, refusal("audit", *files, "--forget", 3, *options, "--overwrite"))
    assert sorted(tmp_path.rglob("*")) == before


def test_an_audit_is_written_and_replaced(files, tmp_path, monkeypatch):
    result = pour.AuditReport.load(ROOT / "results" / "ceiling" / "cifar10.json")
    monkeypatch.setattr(pour, "audit", lambda **_: result)
    monkeypatch.setattr("pour.cli.audit._write_page", lambda _, path, *__, **___: path.write_text("page"))
    command = ["audit", *files, "--forget", 3, "--report", "a.html", "--out", "b.json", "--quiet"]
    succeed(*command)
    assert {path.name for path in tmp_path.glob("[ab].*")} == {"a.html", "a.json", "b.json"}
    (tmp_path / "a.json").write_text("mine")
    refusal(*command)
    succeed(*command, "--overwrite")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


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
    succeed(*command, "--out", out, "--overwrite")
    assert "POUR-P" in out.read_text()


def test_a_model_is_not_written_to_the_facts_beside_it(tmp_path, files):
    out = tmp_path / "m.json"
    for command in (["train"], ["unlearn", files[0], *FORGET], ["train", "--data", "camvid"]):
        assert "m.json is the name of the JSON file next to a model" in refusal(*command, "--out", out)
    assert not out.exists()


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
    succeed(*command, "--export", tar)
    succeed(*command, "--export", tar, "--overwrite")


def test_what_was_done_is_told_before_the_table(tmp_path, monkeypatch):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    stale = made_up(grid, "delete-tuned", forget=(3,), models="b")
    keep(store, grid, made_up(grid, "pour-p", forget=(3,)), stale)
    outcome = Outcome(out=store, done=4, kept=2, failed=("scrub-common, seed 0: It diverged.",))
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome)
    done = call("bench", "digits", "--out", store)
    assert isinstance(done.exception, UsageError)
    assert "with --seeds 0, --forget airplane and without --methods" in str(done.exception)
    assert "4 cells made, 2 were there" in done.output
    assert "failed: scrub-common" in done.output


def test_a_class_named_twice_has_one_table(tmp_path, monkeypatch):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    keep(store, grid, made_up(grid, "pour-p", forget=(3,)))
    outcome = Outcome(out=store, done=0, kept=1, failed=(), requests=((3,),))
    monkeypatch.setattr("pour.bench.run_experiment", lambda *_, **__: outcome)
    done = succeed("bench", "digits", "--out", store, "--forget", 3, "--forget", 3)
    assert done.stdout.count("digits, resnet-digits") == 1


def test_a_file_is_no_folder_for_trials(tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "file is a file; give a folder" in refusal("tune", "digits", "--device", "cpu", "--out", tmp_path / "file")


def test_names_of_classes_are_text(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"n1 caf\xe9\n")
    sentence = refusal("bench", "zeroshot", "--set", f"names={tmp_path / 'names.txt'}", "--out", tmp_path / "runs")
    assert "names.txt is no text in UTF-8" in sentence


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path):
    model = pour.build_model("resnet-digits", 10, **GREY)
    pour.models.set_class_names(model, [f"[/{digit}]" for digit in range(10)])
    file = pour.save(model, tmp_path / "original.safetensors")
    out = tmp_path / "[bold].safetensors"
    done = succeed("unlearn", file, "--method", "pour-p", "--forget", 3, "--out", out)
    assert "[/3]" in done.stdout
    assert "[bold].safetensors" in succeed("history", out).stdout
    done = succeed("train", "--epochs", 1, "--device", "cpu", "--out", tmp_path / "[red].safetensors")
    assert "[red].safetensors: digits" in " ".join(done.stdout.split())


def test_a_store_beside_another(tmp_path):
    grid = get_experiment("digits")
    for name, value in (("mine", 0.25), ("yours", 0.5)):
        keep(tmp_path / name, grid, made_up(grid, "pour-p", forget=(3,), values={"acc_f": value}))
    command = ["table", tmp_path / "mine", "--columns", "acc_f", "--format", "markdown"]
    shown = succeed(*command, "--against", tmp_path / "yours").stdout
    assert f"| POUR-P |  | **25.00** |\n| POUR-P | {tmp_path / 'yours'} | 50.00 |" in shown
    assert "takes paper or results of pour bench, and there is no nowhere" in refusal(*command, "--against", "nowhere")
    assert f"{tmp_path} holds no results" in refusal(*command, "--against", tmp_path)


def test_classes_side_by_side(tmp_path):
    grid, store = get_experiment("digits"), tmp_path / "runs"
    keep(store, grid, made_up(grid, "pour-p", forget=(3,), values={"acc_f": 0.25}, forgotten_names=("3",)))
    assert "results of forgetting 3 alone" in refusal("table", store, "--by-class")
    keep(store, grid, made_up(grid, "pour-p", forget=(5,), values={"acc_f": 0.5}, forgotten_names=("5",)))
    for flag in (["--forget", 3], ["--against", "paper"]):
        assert f"{flag[0]} {UNREAD} with --by-class" in refusal("table", store, "--by-class", *flag)
    shown = succeed("table", store, "--by-class", "--columns", "acc_f", "--format", "markdown").stdout
    assert "| method | setting | Acc_f, 3 ↓ | Acc_f, 5 ↓ |" in shown
    assert "| POUR-P |  | **25.00** | **50.00** |" in shown


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


@pytest.mark.parametrize("installed", [True, False])
def test_missing_data_is_told_in_words_that_every_command_knows(monkeypatch, installed):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: installed or None)
    sentence = refusal("audit", "a", "b", "--forget", 3, "--data", "cifar10")
    assert "(pour train --download)" in sentence
    assert ('pip install "pour-unlearning[download]"' in sentence) is not installed


def help_of(*arguments):
    text = succeed(*arguments, "--help").output
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def test_the_help_of_tune_is_true(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    text = help_of("tune")
    assert "zeroshot has no method to tune" in refusal("tune", "zeroshot")
    assert "tuning_forget of the experiment" in text
    assert "no experiment 'imagenet'" in refusal("tune", "imagenet")


@pytest.mark.parametrize("command", ["bench", "tune", "study"])
def test_the_help_names_the_built_in_experiments(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert f"{', '.join(EXPERIMENTS)}, or a TOML file." in help_of(command)


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


@pytest.mark.parametrize("command", ["train", "unlearn"])
def test_the_help_names_all_recipes(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert f"One of {', '.join(RECIPES)}." in help_of(command)


def test_the_docs_name_all_recipes():
    rows = re.findall(r"^[|] `(\w+)` [|] (SGD|AdamW) [|] (\d+) [|]", (ROOT / "docs" / "training.md").read_text(), re.M)
    kinds = {"sgd": "SGD", "adamw": "AdamW"}
    assert rows == [(name, kinds[recipe.optimizer], str(recipe.epochs)) for name, recipe in RECIPES.items()]


@pytest.mark.parametrize("value", ["nan", "-1"])
def test_saves_have_a_time_between_them(value):
    assert "--save-every is a number of seconds" in refusal("train", "--save-every", value, "--out", "m.safetensors")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("pour-d", "images of the forgotten classes; name their dataset with --data"),
        ("finetune", "images of the retained classes; name"),
        ("scrub", "images of the forgotten and retained classes; name"),
    ],
)
def test_what_a_method_needs_is_named_by_its_flag(files, method, words):
    options = ["--method", method, "--forget", 3, "--out", "f.safetensors"]
    assert f"{method} needs {words}" in refusal("unlearn", files[0], *options)


def test_retraining_needs_a_recipe(files):
    options = ["--method", "retrain", "--data", "digits", "--forget", 3, "--out", "f.safetensors"]
    assert "name its recipe with --recipe" in refusal("unlearn", files[0], *options)
    assert "no recipe 'nosuch'" in refusal("unlearn", files[0], *options, "--recipe", "nosuch")


def test_plain_weights_are_told_to_name_their_network(tmp_path, plain, files):
    options = [*FORGET, "--out", tmp_path / "f.safetensors"]
    nameless = pour.save(torch.nn.Linear(4, 3), tmp_path / "nameless.safetensors")
    for file in (plain(), nameless):
        sentence = refusal("unlearn", file, *options)
        assert sentence.endswith("name it with --arch, and its classes with --data or --num-classes.")
    assert refusal("unlearn", plain(), *options, "--data", "digits").endswith("name it with --arch.")
    assert refusal("audit", files[0], plain(), "--data", "digits", "--forget", 3).endswith("name it with --arch.")
    words = ["--concept", "a cat", "--out", tmp_path / "f.safetensors"]
    assert "--concept is for zero-shot classifiers" in refusal("unlearn", plain(), *words)


def test_training_says_what_the_recipe_is(tmp_path):
    done = succeed("train", "--epochs", 1, "--seed", 1, "--device", "cpu", "--out", tmp_path / "m.safetensors")
    assert "m.safetensors: digits, recipe digits, seed 1" in " ".join(done.stdout.split())


def test_what_is_wrong_with_a_grid_is_told_before_results_are_taken_in(tmp_path):
    grid = small_grid()
    keep(tmp_path / "home", grid, made_up(grid, "pour-p"))
    succeed("bench", "digits", "--out", tmp_path / "home", "--export", tmp_path / "x.json.gz")
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


def test_stores_of_other_kinds_are_not_set_above_each_other(tmp_path):
    results = ROOT / "results"
    for other in ("zeroshot", "camvid"):
        assert "give results of the same experiment" in refusal(
            "table", results / "cifar100.json.gz", "--against", results / f"{other}.json.gz"
        )


def test_what_the_system_refuses_is_one_sentence(monkeypatch, capsys, tmp_path):
    name = tmp_path / ("x" * 300)
    monkeypatch.setattr(sys, "argv", ["pour", "table", str(name)])
    with pytest.raises(SystemExit) as ended:
        pour.cli.main()
    assert ended.value.code in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
