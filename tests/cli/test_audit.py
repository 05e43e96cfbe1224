"""pour audit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from command_line import GREY, UNREAD, ReachedError, call, complaint, here, refusal, succeed_here

import pour

pytestmark = pytest.mark.usefixtures("no_data")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("flag", [["--relearn"], ["--layers"], ["--limit", 5]])
def test_an_audit_of_scenes_refuses_what_it_does_not_read(flag):
    options = ["--data", "camvid", "--forget", "car"]
    assert f"{flag[0]} {UNREAD} for the task segment" in refusal("audit", "a", "b", *options, *flag)


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
    assert "pass --overwrite to replace it" in refusal(*command)
    assert isinstance(call(*command, "--overwrite").exception, ReachedError)
    assert (tmp_path / there).read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == before


def test_the_file_beside_a_model_is_not_replaced_either(files, tmp_path):
    """It may be somebody's own, or what is left to know of a model that is gone."""
    (tmp_path / "new.json").write_text("mine")
    train = ["train", "--data", "digits", "--out", tmp_path / "new.safetensors"]
    unlearn = ["unlearn", files[0], "--forget", 3, "--method", "pour-p", "--out", tmp_path / "new.safetensors"]
    for command in (train, [*train[:2], "camvid", *train[3:]], unlearn):
        assert "new.json, which belongs to" in refusal(*command)
    assert (tmp_path / "new.json").read_text() == "mine"
    assert not (tmp_path / "new.safetensors").exists()
    succeed_here(*unlearn, "--overwrite")
    assert "pour-p" in (tmp_path / "new.json").read_text()


@pytest.mark.usefixtures("no_audit")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--report", "folder"], "folder is a folder"),
        (["--report", "folder.html"], "folder.json is a folder"),
        (["--report", "original.safetensors/a.html"], "original.safetensors is a file and not a folder"),
        (["--report", "a.json"], "choose a name [*].html for --report"),
        (["--report", "a.html", "--out", "a.html"], "choose a name [*].html for --report"),
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
    command = ["audit", *files, "--forget", 3, "--report", "a.html", "--out", "b.json", "--quiet"]
    succeed_here(*command)
    assert {path.name for path in tmp_path.glob("[ab].*")} == {"a.html", "a.json", "b.json"}
    (tmp_path / "a.json").write_text("mine")
    refusal(*command)
    succeed_here(*command, "--overwrite")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize("installed", [True, False])
def test_missing_data_is_told_in_words_that_every_command_knows(monkeypatch, installed):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: installed or None)
    sentence = refusal("audit", "a", "b", "--forget", 3, "--data", "cifar10")
    assert "download it with --download to pour train" in sentence
    assert ('pip install "pour-unlearning[download]"' in sentence) is not installed


@pytest.mark.parametrize("target", ["original.safetensors", "original.json", "original.html"])
def test_an_audit_replaces_no_file_of_its_models(trained, target):
    before = {path.name: path.read_bytes() for path in trained.parent.iterdir()}
    flag = "--report" if target.endswith("html") else "--out"
    options = ["--forget", 3, "--data", "digits", flag, trained.with_name(target), "--overwrite"]
    assert "a file of an audited model" in complaint(here("audit", trained, trained, *options))
    assert "is a file; pass a folder" in complaint(here("audit", trained, trained, *options[:4], "--cache", trained))
    assert {path.name: path.read_bytes() for path in trained.parent.iterdir()} == before
