"""Segmentation on the command line, through real processes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from command_line import here, process

import pour
from pour._torchvision import torchvision_works
from pour.cli.terminal import PlainWeights, open_model
from pour.data import load_segmentation

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

torchvision_works()
pytest.importorskip("segmentation_models_pytorch")
ARCH = "smp:linknet:tu-mobilenetv3_small_050"


def succeed(*arguments: object, root: Path) -> subprocess.CompletedProcess[str]:
    done = process(*arguments, POUR_DATA=root)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_world) -> Path:
    out = tmp_path_factory.mktemp("cli") / "original.safetensors"
    done = succeed(
        "train", "--data", "camvid", "--arch", ARCH, "--epochs", 12, "--batch-size", 6, "--lr", 5e-3, "--out", out,
        root=small_world,
    )  # fmt: skip
    assert "pixel accuracy" in done.stdout
    return out


def test_train_writes_model_and_facts(trained) -> None:
    facts = json.loads(trained.with_suffix(".json").read_text())
    assert set(facts["segmentation"]) == {"train", "val", "test"}
    assert facts["segmentation"]["train"]["mean_iou"] > 0.3
    assert facts["recipe"]["name"] == "scenes"
    assert pour.load(trained).model.__class__.__name__ == "Linknet"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("pour-p", ()),
        ("pour-d", ("--steps", 2, "--batch-size", 4, "--lr", 1e-4, "--other-pixels", "keep")),
    ],
)
def test_unlearn_and_audit(trained, small_world, tmp_path, method, options) -> None:
    out, page = tmp_path / "forgotten.safetensors", tmp_path / "report.html"
    printed = succeed(
        "unlearn", trained, "--data", "camvid", "--forget", "car", "--method", method, *options, "--out", out,
        root=small_world,
    ).stdout  # fmt: skip
    assert printed.startswith("On the forget pixels of 'Car' the accuracy")
    done = succeed("audit", trained, out, "--data", "camvid", "--forget", "car", "--report", page, root=small_world)
    assert "IoU_f, forgotten" in done.stdout
    report = pour.AuditReport.load(page.with_suffix(".json"))
    assert report.data.forgotten_names == ("Car",)
    if method == "pour-p":
        assert report.value("iou_f") == 0
    assert " ".join(report.summary) in " ".join(done.stdout.split())
    assert "test pixels of 'Car'" in report.summary[0]
    text = page.read_text()
    assert "Scenes before and after" in text
    assert "data:image/svg+xml" in text


@pytest.mark.slow
def test_bench_and_table(small_world, tmp_path) -> None:
    """With the shipped experiment, its network hardly trained."""
    store = tmp_path / "camvid"
    bench = ["bench", "camvid", "--set", "recipe.epochs=1", "--out", store, "--forget", "car", "--methods", "pour-p"]
    done = succeed(*bench, "--methods", "masked-head", root=small_world)
    assert "5 cells computed, 0 were already stored" in done.stdout
    again = succeed(*bench, "--methods", "masked-head", "--quiet", root=small_world)
    assert "0 cells computed, 5 were already stored" in again.stdout
    table = here("table", store, "--format", "markdown", "--against", "paper").stdout
    assert "| Car | POUR-P, logit kept |" in table
    assert "| dog | paper |" in table
    moved = here("bench", "camvid", "--out", store, "--export", tmp_path / "cells.tar")
    assert "5 cells in" in moved.stdout
    assert (tmp_path / "cells.tar").is_file()


def test_plain_weights_take_a_normalisation(small_world, tmp_path) -> None:
    scenes, file = load_segmentation("camvid", small_world), tmp_path / "plain.pt"
    torch.save(pour.build_model(ARCH, scenes.num_classes).model.state_dict(), file)
    plain = PlainWeights.of(ARCH, "0.1,0.2,0.3", "0.5", file)
    found = open_model(file, plain, scenes).normalize
    assert found.mean.flatten().tolist() == pytest.approx([0.1, 0.2, 0.3])
    assert found.std.flatten().tolist() == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("unlearn", "MODEL", "--data", "camvid", "--forget", "boat", "--method", "pour-p"), "no class called 'boat'"),
        (("unlearn", "MODEL", "--data", "camvid", "--forget", "car", "--method", "delete"), "on scenes use one of"),
        (
            ("unlearn", "MODEL", "--data", "camvid", "--forget", "car", "--recipe", "fast"),
            "--recipe has no use on camvid",
        ),
        (("train", "--data", "camvid", "--arch", "resnet18"), "no segmentation network"),
        (("train", "--data", "camvid", "--arch", "smp:unet:resnet18"), "1x1 convolution"),
        (("bench", "camvid", "--set", "settings.head=1"), "The task 'segment' has no setting 'head'"),
        (("bench", "camvd"), "the experiments are digits, cifar10, cifar10-small, cifar100, pathmnist, camvid"),
    ],
)
def test_wrong_use_gives_one_sentence(trained, small_world, tmp_path, arguments, words, monkeypatch) -> None:
    monkeypatch.setenv("POUR_DATA", str(small_world))
    given = [trained if argument == "MODEL" else argument for argument in arguments]
    done = here(*given, "--out", tmp_path / "x.safetensors")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert words in done.stderr
