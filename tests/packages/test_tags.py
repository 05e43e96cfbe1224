"""A fourth task in a package of its own, which pip installs as it installs any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from installed_package import install

if TYPE_CHECKING:
    from installed_package import Installed

EXPERIMENT = """
task = "tags"
dataset = "digit-tags"
recipe = {name = "digits", epochs = 2}
forget = ["prime", ["loop", "large"]]
rows = ["references", "pour-p", "masked-head"]
columns = ["tag_f1_r", "tag_f1_f", "rus_o"]

[settings]
threshold = 0.4
"""
PACKAGE = Path(__file__).parent / "pour-tags"


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The package with the task, its dataset and its metric."""
    return install(PACKAGE, tmp_path_factory.mktemp("tags"))


def commands(*lines: str) -> str:
    """Return code that runs commands of pour one after the other."""
    return f"import sys\nfrom pour.cli import main\nfor line in {lines!r}:\n    sys.argv = line.split()\n    " + (
        "try:\n        main()\n    except SystemExit as ended:\n        assert not ended.code, ended.code\n"
    )


def test_train_unlearn_and_audit(tags: Installed, tmp_path: Path) -> None:
    train = "pour train --data digit-tags --epochs 2 --device cpu --quiet --out"
    audit = "pour audit o.safetensors u.safetensors --data digit-tags --device cpu --quiet --report page.html"
    lines = [
        f"{train} o.safetensors",
        f"{train} r1.safetensors --without prime",
        f"{train} r2.safetensors --without prime --seed 1",
        "pour unlearn o.safetensors --data digit-tags --forget prime --method pour-p --device cpu --out u.safetensors",
        f"{audit} --retrained r1.safetensors --retrained r2.safetensors",
    ]
    printed = tags.run(commands(*lines), tmp_path)
    assert "On the forget images of 'prime' the accuracy" in printed
    facts = json.loads((tmp_path / "o.json").read_text())
    assert facts["task"] == "tags"
    assert facts["tag_f1"]["test"]["even"] > 0.8
    report = json.loads((tmp_path / "page.json").read_text())
    found = {line["name"]: line for line in report["lines"] if line["section"] != "raw"}
    assert found["tag_f1_f"]["unlearned"]["value"] == 0
    assert found["tag_f1_f"]["verdict"] != "no reference"
    assert found["tag_f1_f"]["original"]["value"] > 0.5
    assert found["tag_f1_r"]["unlearned"]["low"] < found["tag_f1_r"]["unlearned"]["value"]
    # Images with a tag, not labels, are forgotten.
    assert report["data"]["counts"]["test"] == [142, 213]
    assert {"cka_f_o", "cka_r_o", "rus_o"} <= found.keys()
    page = (tmp_path / "page.html").read_text()
    assert "F1, forgotten tags" in page
    assert "Harmonic mean of precision and recall" in page


def test_bench_and_table(tags: Installed, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(EXPERIMENT)
    table = "pour table runs/mine --format markdown"
    lines = [
        "pour bench mine.toml --device cpu --quiet",
        "pour bench mine.toml --device cpu --quiet",
        f"{table} --forget prime --out prime.md",
        "pour bench mine.toml --export mine.json.gz",
        "pour table mine.json.gz --format csv --forget prime --columns tag_f1_f --out prime.csv",
    ]
    printed = tags.run(commands(*lines), tmp_path)
    assert "14 cells computed, 0 were already stored" in printed
    assert "0 cells computed, 14 were already stored" in printed
    text = (tmp_path / "prime.md").read_text()
    assert "F1, forgotten tags" in text
    assert "prime forgotten" in text
    masked = next(line for line in text.splitlines() if "Masked head" in line)
    assert "| **0.00** |" in masked
    assert "Masked head" in (tmp_path / "prime.csv").read_text()
    cell = json.loads((tmp_path / "runs/mine/cells/forget-1/seed-0/masked-head.json").read_text())["cell"]
    assert cell["setup"]["threshold"] == 0.4
    assert cell["values"]["tag_f1_f"]["value"] == 0


def test_tune(tags: Installed, tmp_path: Path) -> None:
    options = "options = {steps = 4, stop_accuracy = 'null'}"
    row = f"{{name = 'ascent', method = 'gradient-ascent', setting = 'tuned', {options}}}"
    rows = f'rows = [{row}]\ntuning_forget = ["even"]'
    (tmp_path / "mine.toml").write_text(EXPERIMENT.replace('rows = ["references", "pour-p", "masked-head"]', rows))
    tags.run(commands("pour tune mine.toml --rule user --device cpu --quiet"), tmp_path)
    result = json.loads((tmp_path / "runs/mine-tuning/gradient-ascent-user/result.json").read_text())
    scores = [trial["forget_accuracy"] for trial in result["trials"] if trial["failed"] is None]
    assert len(scores) >= 8
    assert all(0 <= score <= 1 for score in scores)


MULTI_LABEL = """
import warnings

import pour
import pytest
import torch
from pour.errors import UsageError
from pour.training import get_task
from pour.unlearning import ForgetRequest

warnings.simplefilter("ignore")
task = get_task("tags")
dataset = task.load("digit-tags")
torch.manual_seed(0)
model = task.build("resnet-digits", dataset)
train = dataset.splits["train"]
for method, options in [("pour-d", {"steps": 3}), ("pour-d", {"steps": 3, "direction": "means"}), ("delete", {})]:
    options = {"epochs": 1} | options if method == "delete" else options
    for classes in ([2], [0, 1]):
        prepared = ForgetRequest(classes=classes, **task.request_fields("resnet-digits", dataset, tuple(classes)))
        states = []
        for request in (prepared, ForgetRequest(classes=classes, forget=train, mirrors=False)):
            forgotten = pour.unlearn(model, request, method=method, device="cpu", progress=False, force=True, **options)
            states.append(forgotten.state_dict())
        assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
with pytest.raises(UsageError, match=r"have the shape \\(1442, 4\\); pass one label per image"):
    data = {"forget": train, "retain": train.without([2])}
    pour.unlearn(model, classes=[2], method="finetune", device="cpu", force=True, **data)
"""


def test_methods_forget_the_images_with_a_tag(tags: Installed, tmp_path: Path) -> None:
    tags.run(MULTI_LABEL, tmp_path)
