"""pour train."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
import torch
from command_line import ENVIRONMENT, UNREAD, complaint, here, process, refusal, succeed, succeed_here

import pour

pytestmark = pytest.mark.usefixtures("no_data")


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
        (["--data", "cifar10", "--set", "head=simplex"], "The head 'simplex' needs --freeze-backbone"),
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


def test_training_changes_its_recipe_as_an_experiment_does(tmp_path):
    out = tmp_path / "m.safetensors"
    succeed_here("train", "--set", "recipe.epochs=1", "--set", "recipe.lr=0.05", "--device", "cpu", "--out", out)
    recipe = json.loads(out.with_suffix(".json").read_text())["recipe"]
    assert (recipe["name"], recipe["epochs"], recipe["lr"]) == ("digits", 1, 0.05)
    assert "The recipe has the unknown key size" in refusal(
        "train", "--set", "recipe.size=1", "--out", out, "--overwrite"
    )


@pytest.mark.parametrize("value", ["nan", "-1"])
def test_saves_have_a_time_between_them(value):
    assert "--save-every is a number of seconds" in refusal("train", "--save-every", value, "--out", "m.safetensors")


def test_training_says_what_the_recipe_is(tmp_path):
    done = succeed_here("train", "--epochs", 1, "--seed", 1, "--device", "cpu", "--out", tmp_path / "m.safetensors")
    assert "m.safetensors: digits, recipe digits, seed 1" in " ".join(done.stdout.split())


def test_train_writes_model_and_facts(trained):
    facts = json.loads(trained.with_suffix(".json").read_text())
    assert facts["accuracy"]["test"] > 0.9
    assert facts["neural_collapse"]["nc4"] > 0.9
    assert facts["seed"] == 0
    assert "--epochs 4" in facts["command"]
    model = pour.load(trained)
    scores = model(torch.rand(2, 1, 8, 8))
    assert scores.shape == (2, 10)
    assert sorted(path.name for path in trained.parent.glob("original*")) == ["original.json", "original.safetensors"]


def test_retraining_without_a_class(tmp_path):
    out = tmp_path / "retrained.safetensors"
    succeed("train", "--data", "digits", "--epochs", 3, "--without", "3", "--out", out)
    accuracy = json.loads(out.with_suffix(".json").read_text())["accuracy"]
    assert accuracy["test_forgotten"] == 0
    assert accuracy["test"] > 0.8


@pytest.mark.slow
def test_a_training_that_is_killed_twice_ends_with_the_same_bytes(tmp_path):
    options = ["train", "--data", "digits", "--epochs", 4, "--save-every", 0, "--quiet", "--seed", 4]
    succeed(*options, "--out", tmp_path / "whole.safetensors")
    out = tmp_path / "killed.safetensors"
    resume = tmp_path / "killed.safetensors.resume"
    for _ in range(2):
        before = resume.stat().st_mtime_ns if resume.exists() else 0
        command = [sys.executable, "-m", "pour", *map(str, options), "--out", str(out)]
        process = subprocess.Popen(command, env=ENVIRONMENT)
        while not (resume.exists() and resume.stat().st_mtime_ns > before):
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
    succeed(*options, "--out", out)
    assert out.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert not resume.exists()


def test_divergence_is_failed_work(tmp_path):
    out = tmp_path / "out.safetensors"
    sentence = complaint(process("train", "--lr", "1e9", "--epochs", 2, "--out", out, "--quiet"), code=1)
    assert "at step" in sentence
    assert "learning rate" in sentence
    # With a single step, nothing is measured after it but the scores.
    single = here("train", "--lr", "1e30", "--epochs", 1, "--batch-size", 1442, "--out", out, "--quiet")
    assert "scores are no longer finite" in complaint(single, code=1)
    assert not list(tmp_path.iterdir())
