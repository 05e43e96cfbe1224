"""Methods, metrics, datasets and tasks of other packages, which pour finds by their entry points."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from command_line import process

import pour
from pour.data import NamedDataset, register_dataset
from pour.data.formats.digits import DIGITS, read_digits
from pour.errors import UsageError
from pour.metrics import Metric, register_metric
from pour.training import Task, register_task

METHOD = '''
    from dataclasses import dataclass
    from typing import ClassVar

    from pour.methods.masked_head import MaskedHead
    from pour.unlearning import register


    @register
    @dataclass(kw_only=True)
    class Theirs(MaskedHead):
        """Delete [/x]."""

        name: ClassVar[str] = "theirs"
'''
METRIC = """
    from pour.metrics import Metric

    BEAUTY = Metric(
        name="beauty", title="Beauty [b]", family="looks", meaning="Looks.", formula="B", better="higher"
    )
"""
DATASET = """
    from pour.data import DatasetInfo, NamedDataset, load_dataset

    MINE = NamedDataset(info=DatasetInfo(name="mine", title="Mine [/b]"), read=lambda root: load_dataset("digits"))
"""
TASK = """
    from dataclasses import dataclass
    from typing import ClassVar

    from pour.training import register_task
    from pour.training.tasks.classify import Classify


    @register_task
    @dataclass(frozen=True, kw_only=True)
    class Paint(Classify):
        name: ClassVar[str] = "paint"

        brush: int = 3

        @classmethod
        def accepts(cls, data, arch):
            return arch == "brush"
"""
# Each stops the import in its own way.
BROKEN = {
    "exits": "raise SystemExit(3)",
    "stops": "raise GeneratorExit('gone')",
    "typo": "def :",
    "garbled": r"raise ValueError('\x1b]52;c;aGk=\x07' + chr(10) + 'second line')",
    "speechless": "class Mute(Exception):\n    def __str__(self):\n        raise SystemExit\nraise Mute",
}


def write_package(folder: Path, name: str, modules: dict[str, str], entry_points: str) -> None:
    """Write a package as pip would install it: its modules, and a folder with the names of its entry points."""
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    for module, source in modules.items():
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entry_points)


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that has one good package and one broken package."""
    folder = tmp_path_factory.mktemp("site")
    good = "[pour.methods]\ntheirs = theirs_method:Theirs\n[pour.metrics]\nbeauty = theirs_metric:BEAUTY\n"
    good += "[pour.datasets]\nmine = theirs_dataset:MINE\n[pour.tasks]\npaint = theirs_task:Paint\n"
    modules = {"theirs_method": METHOD, "theirs_metric": METRIC, "theirs_dataset": DATASET, "theirs_task": TASK}
    write_package(folder, "theirs", modules, good)
    lines = [f"{name} = broken_{name}:Thing" for name in BROKEN] + ["gone = nowhere:Gone", "number = math:pi"]
    groups = [f"[pour.{kind}]\n" + "\n".join(lines) + "\n" for kind in ("methods", "metrics", "datasets", "tasks")]
    write_package(folder, "broken", {f"broken_{name}": source for name, source in BROKEN.items()}, "".join(groups))
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


@pytest.mark.parametrize(
    ("command", "kind", "shown"),
    [
        ("methods", "method", ["theirs", "[/x]", "pour-d"]),
        ("metrics", "metric", ["beauty", "Beauty [b]", "acc_f"]),
        ("datasets", "dataset", ["mine", "Mine [/b]", "cifar10"]),
    ],
)
def test_commands_show_what_packages_add_and_survive_broken_ones(
    packages: dict[str, str], command: str, kind: str, shown: list[str]
) -> None:
    done = process(command, **packages)
    assert done.returncode == 0, done.stderr
    for text in shown:
        assert text in done.stdout
    warned = re.findall(rf"^pour: warning: The {kind} '(\w+)' of 'broken' is not available", done.stderr, re.MULTILINE)
    assert sorted(warned) == sorted([*BROKEN, "gone", "number"])
    # Nothing else is printed, and no control characters reach the terminal.
    assert len(done.stderr.splitlines()) == len(warned)
    assert "\x1b" not in done.stderr
    assert "because 'broken_exits:Thing' failed: SystemExit: 3." in done.stderr
    assert "ModuleNotFoundError: No module named 'nowhere'." in done.stderr


def test_python_finds_what_packages_add(packages: dict[str, str]) -> None:
    code = """
        import warnings

        import pour
        from pour.bench import get_experiment
        from pour.metrics.catalogue import find_metric, title_of
        from pour.training import find_task, get_task, list_tasks
        from pour.unlearning import get_method

        warnings.simplefilter("ignore")
        print(get_method("theirs").name, "theirs" in [row.name for row in get_experiment("digits").rows])
        print(find_metric("beauty_train")[1], title_of("beauty"))
        print(pour.load_dataset("mine").name)
        print(find_task("digits", "brush"), find_task("digits"), get_task("paint", brush=4).brush, len(list_tasks()))
    """
    environment = {**os.environ, **packages}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.stdout.splitlines() == [
        "theirs True",
        "_train Beauty [b]",
        "digits",
        "paint classify 4 4",
    ], done.stderr


def test_the_tests_pass_beside_other_packages(packages: dict[str, str]) -> None:
    """They count methods, datasets and tasks, and name all metrics."""
    chosen = ["metrics/test_catalogue.py", "data/test_registry.py", "training/tasks/test_task.py"]
    chosen += ["methods/test_conformance.py::test_every_method_has_a_case", "report/page/test_definitions.py"]
    files = [str(Path(__file__).parent / name) for name in chosen]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files],
        capture_output=True,
        text=True,
        env={**os.environ, **packages},
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]


def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(UsageError, match=r"A dataset is a pour.data.NamedDataset with a DatasetInfo, not 3\."):
        register_dataset(3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="There is already a dataset 'digits'; choose another name"):
        register_dataset(NamedDataset(info=DIGITS, read=lambda root: read_digits()))
    with pytest.raises(UsageError, match=r"A metric cannot be called 'Acc f'; use lower-case letters"):
        register_metric(Metric(name="Acc f", title="a", family="accuracy", meaning="A.", formula="A", better="higher"))
    with pytest.raises(UsageError, match=r"A task is a subclass of pour.training.Task, not 3\."):
        register_task(3)  # type: ignore[type-var]
    with pytest.raises(UsageError, match=r"The task Unnamed has no name; set it as a class attribute\."):
        register_task(type("Unnamed", (Task,), {}))
    with pytest.raises(UsageError, match=r"The task half has no method accepts; define it\."):
        register_task(type("Half", (Task,), {"name": "half", "metrics": ()}))
    assert [status.info.name for status in pour.list_datasets()].count("digits") == 1
