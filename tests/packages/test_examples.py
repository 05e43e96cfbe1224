"""The examples of the pages on methods, metrics and datasets of one's own, installed as one package."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from installed_package import install

if TYPE_CHECKING:
    from installed_package import Installed

ROOT = Path(__file__).resolve().parent.parent.parent
NETWORKS = ROOT / "tests" / "networks" / "digits"
PROJECT = """
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "extras"
version = "1.0"

[tool.setuptools]
packages = ["extras"]

"""
CODE = f"""
import json

import pour
from pour.training import Recipe, Run, get_task

names = ("original", "retrained", "retrained-second")
original, *retrained = (pour.load(f"{NETWORKS}/{{name}}.safetensors") for name in names)
splits = pour.Splits.of(pour.load_dataset("digits"), ["3"])
options = {{"lr": 1e-3, "epochs": 20, "augment": False, "sharpness": 2.0, "device": "cpu", "progress": False}}
student = pour.unlearn(original, pour.ForgetRequest.of(splits), method="flatten", **options)
audited = {{"original": original, "unlearned": student, "retrained": retrained, "data": splits, "device": "cpu"}}
report = pour.audit(**audited, progress=False)
dark = pour.load_dataset("dark-digits")
task = get_task("smooth", smoothing=0.2)
recipe = Recipe(steps=3, batch_size=16, lr=0.1, augment=False)
_, log = task.train(dark, recipe, Run(device="cpu", progress=False), arch="resnet-digits")
print(json.dumps({{
    "methods": [info.name for info in pour.list_methods()],
    "sharpness": pour.history(student)[-1].options["sharpness"],
    "confidence": [getattr(report.line("confidence_f"), role).value for role in ("original", "unlearned")],
    "verdict": report.line("confidence_f").verdict,
    "brightest": int(dark.splits["test"].images.max()),
    "identity": task.identity(),
    "losses": log.losses,
}}))
"""


def examples() -> dict[str, str]:
    """Return the code of each example by its name."""
    pages = sorted((ROOT / "docs" / "how-to").glob("add-*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    found = re.findall(r"<!-- example: ([\w ]+) -->\n```\w+\n(.*?)```\n<!-- end -->", text, flags=re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def extras(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The package, which pip builds and installs."""
    folder = tmp_path_factory.mktemp("extras")
    (folder / "project" / "extras").mkdir(parents=True)
    code = examples()
    (folder / "project" / "pyproject.toml").write_text(PROJECT + code.pop("entry points"))
    for name, source in {"__init__": "", **code}.items():
        (folder / "project" / "extras" / f"{name}.py").write_text(source)
    return install(folder / "project", folder)


def test_there_is_a_short_example_of_each() -> None:
    found = examples()
    assert sorted(found) == ["dataset", "entry points", "method", "metric", "task"]
    assert all(len(code.splitlines()) < 40 for code in found.values())


def test_the_examples_work(extras: Installed, tmp_path: Path) -> None:
    printed: dict[str, Any] = json.loads(extras.run(textwrap.dedent(CODE), tmp_path).splitlines()[-1])
    assert {"flatten", "pour-d"} <= set(printed["methods"])
    assert printed["sharpness"] == 2.0
    # The method lowers the confidence that the metric measures.
    before, after = printed["confidence"]
    assert after < 0.5 < before
    assert printed["verdict"] == "better"
    assert printed["brightest"] == 127
    assert printed["identity"] == {"smoothing": 0.2}
    assert len(printed["losses"]) == 3
