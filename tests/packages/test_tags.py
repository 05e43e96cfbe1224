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


def test_train(tags: Installed, tmp_path: Path) -> None:
    train = "pour train --data digit-tags --epochs 2 --device cpu --quiet --out"
    tags.run(commands(f"{train} original.safetensors", f"{train} retrained.safetensors --without prime"), tmp_path)
    facts = json.loads((tmp_path / "original.json").read_text())
    assert facts["task"] == "tags"
    assert facts["tag_f1"]["test"]["even"] > 0.8
