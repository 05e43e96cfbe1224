"""A fourth task in a package of its own, which pip installs as it installs any other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from installed_package import install

if TYPE_CHECKING:
    from installed_package import Installed

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
        "pour unlearn o.safetensors --forget prime --method pour-p --device cpu --quiet --out u.safetensors",
        f"{audit} --retrained r1.safetensors --retrained r2.safetensors",
    ]
    tags.run(commands(*lines), tmp_path)
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
