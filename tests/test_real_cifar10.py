"""Real images, from command to report: a small network of ours that knows CIFAR-10 forgets the airplanes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from command_line import process

import pour
from pour.auditing import AuditReport
from pour.data import list_datasets

if TYPE_CHECKING:
    from torch import nn

NETWORKS = Path(__file__).parent / "networks"
ROOT = Path(os.environ.get("POUR_DATA", "/nowhere"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(status.present and status.info.name == "cifar10" for status in list_datasets(ROOT)),
        reason="cifar10 is not under POUR_DATA",
    ),
]


@pytest.fixture(scope="module")
def airplanes() -> pour.Splits:
    return pour.Splits.of(pour.load_dataset("cifar10", ROOT), ["airplane"])


@pytest.fixture(scope="module")
def few(airplanes: pour.Splits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every tenth image, in a file of its own."""
    path = tmp_path_factory.mktemp("few") / "few.npz"
    parts = {"train": airplanes.train.whole, "test": airplanes.test.whole}
    arrays = {
        f"{name}_{letter}": values[::10]
        for name, split in parts.items()
        for letter, values in (("x", split.images), ("y", split.labels))
    }
    np.savez(path, **arrays)
    return path


@pytest.fixture(scope="module")
def original() -> nn.Module:
    return pour.load(NETWORKS / "original.safetensors")


def accuracies(model: nn.Module, splits: pour.Splits) -> list[float]:
    """On retained and on forgotten test images, in percent."""
    found = []
    for split in (splits.retain_test, splits.forget_test):
        images = torch.as_tensor(split.images).permute(0, 3, 1, 2)
        with torch.inference_mode():
            guessed = torch.cat([model(part / 255).argmax(dim=1) for part in images.split(500)])
        found.append(100 * (guessed == torch.as_tensor(split.labels)).double().mean().item())
    return found


def test_the_networks_are_those_that_were_trained(original: nn.Module, airplanes: pour.Splits) -> None:
    recorded = json.loads((NETWORKS / "networks.json").read_text())["cifar10"]
    for name, model in (("original", original), ("retrained", pour.load(NETWORKS / "retrained.safetensors"))):
        assert accuracies(model, airplanes) == pytest.approx(recorded[name]["test"], abs=0.05)


@pytest.mark.filterwarnings("ignore:pour-d still")
@pytest.mark.parametrize(
    ("method", "options", "left"),
    [("pour-d", {"steps": 60, "lr": 1e-3, "batch_size": 64}, 20), ("delete", {"steps": 40, "lr": 3e-4}, 5)],
)
def test_methods_forget_real_images(
    original: nn.Module, airplanes: pour.Splits, few: Path, method: str, options: dict[str, Any], left: float
) -> None:
    splits = pour.Splits.of(pour.load_dataset(str(few)), [0])
    request = pour.ForgetRequest.of(splits)
    student = pour.unlearn(original, request, method=method, seed=0, device="cpu", progress=False, **options)
    before, (retained, forgotten) = accuracies(original, splits), accuracies(student, splits)
    assert before[1] > 80
    assert forgotten < left
    assert retained > before[0] - 3


def test_the_commands_forget_real_images(few: Path, tmp_path: Path) -> None:
    def run(*arguments: object) -> None:
        done = process(*arguments, "--device", "cpu", "--quiet")
        assert done.returncode == 0, done.stderr

    original, retrained = NETWORKS / "original.safetensors", NETWORKS / "retrained.safetensors"
    projected, page = tmp_path / "projected.safetensors", tmp_path / "page.html"
    run("unlearn", original, "--method", "pour-p", "--forget", "airplane", "--out", projected)
    data = ["--data", few, "--forget", 0]
    run("audit", original, projected, "--retrained", retrained, *data, "--out", tmp_path / "a.json", "--report", page)
    report = AuditReport.load(tmp_path / "a.json")
    assert report.value("acc_f") == 0
    assert report.value("acc_r") > 0.7
    assert report.line("acc_f").verdict == "within its interval"
    assert report.value("probe_linear", "raw") > 0.8, "the encoder still knows the class"
    assert "pour-p" in page.read_text()
