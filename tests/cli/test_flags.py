"""Rules for the flags of all commands."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from command_line import ReachedError, call, help_of, succeed_here

import pour
from pour.bench.experiment import EXPERIMENTS
from pour.cli.flags import refuse_unread
from pour.errors import UsageError
from pour.training import RECIPES

pytestmark = pytest.mark.usefixtures("no_data")
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("value", [0, "", 0.0, ["x"], True, Path()])
def test_whatever_was_given_counts(value):
    with pytest.raises(UsageError, match=r"^--x has no use here; leave it out\.$"):
        refuse_unread({"--y": None, "--x": value}, "here")


def test_what_was_not_given_does_not_count():
    refuse_unread({"--a": None, "--b": False, "--c": []}, "here")


def documented():
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    kinds = "train|unlearn|audit|bench|table|tune|study"
    return [
        command
        for page in pages
        for command in re.findall(
            rf"^[ ]*(?:\$ )?pour +((?:{kinds}) .+)$", page.read_text().replace("\\\n", " "), flags=re.MULTILINE
        )
        # An example of a method of another package, the usage of a command, and its help.
        if not any(words in command for words in ("flatten", "[OPTIONS]", "--help"))
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
        absent = re.search("There is no file|contains no results|does not exist|is not under", str(done.exception))
        assert isinstance(done.exception, ReachedError) or absent, (command, done.output, done.exception)


@pytest.mark.parametrize("command", ["audit", "unlearn"])
def test_the_normalisation_is_in_the_help(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = succeed_here(command, "--help").output
    assert "--mean" in text
    assert "--std" in text


@pytest.mark.parametrize("command", ["bench", "tune", "study"])
def test_the_help_names_the_built_in_experiments(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert f"{', '.join(EXPERIMENTS)}, or a TOML file." in help_of(command)


@pytest.mark.parametrize("command", ["train", "unlearn"])
def test_the_help_names_all_recipes(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    assert f"One of {', '.join(RECIPES)}." in help_of(command)


def test_the_docs_name_all_recipes():
    rows = re.findall(
        r"^[|] `(\w+)` [|] (SGD|AdamW) [|] (\d+) [|]",
        (ROOT / "docs" / "how-to" / "own-experiment.md").read_text(),
        re.M,
    )
    kinds = {"sgd": "SGD", "adamw": "AdamW"}
    assert rows == [(name, kinds[recipe.optimizer], str(recipe.epochs)) for name, recipe in RECIPES.items()]


def test_what_the_system_refuses_is_one_sentence(monkeypatch, capsys, tmp_path):
    name = tmp_path / ("x" * 300)
    monkeypatch.setattr(sys, "argv", ["pour", "table", str(name)])
    with pytest.raises(SystemExit) as ended:
        pour.cli.main()
    assert ended.value.code in (1, 2)
    assert capsys.readouterr().err.count("\n") == 1
