"""The help of the commands: few flags, groups, and examples that the commands accept."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import here, succeed_here

import pour
from pour.bench import get_experiment
from pour.cli import COMMANDS, GROUPS, make_app
from pour.cli.examples import EXAMPLES, GUIDES, WIDTH, Example
from pour.cli.flags import MORE
from pour.models.networks.pretrained import PRETRAINED

ROOT = Path(__file__).resolve().parents[2]

MOST_FIRST = 15
MOST = 22


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_few_flags_and_shows_fewer(name: str) -> None:
    command = typer.main.get_command(make_app([])).commands[name]  # type: ignore[attr-defined]
    flags = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    first = [flag for flag in flags if flag.rich_help_panel is None]
    assert {flag.rich_help_panel for flag in flags} <= {None, MORE}
    # Typer adds --help.
    assert len(first) + 1 <= MOST_FIRST
    assert len(flags) + 1 <= MOST


def all_examples() -> list[Any]:
    return [pytest.param(example, id=example.command) for examples in EXAMPLES.values() for example in examples]


def parsed(line: str) -> tuple[str, dict[str, Any]]:
    """Return the command of a line and its parameters. The parser raises an error for unknown and missing flags."""
    program, *arguments = shlex.split(line)
    assert program == "pour"
    group: Any = typer.main.get_command(make_app(arguments))
    context = group.make_context("pour", [*arguments])
    name, command, rest = group.resolve_command(context, arguments)
    return name, command.make_context(name, rest, parent=context).params


@pytest.mark.parametrize("example", all_examples())
def test_an_example_is_a_command_line(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    line = "\n".join(example.lines())
    # A shell joins lines that end in a backslash.
    assert shlex.split(line.replace("\\\n", "")) == shlex.split(example.command)
    if "--help" in example.command:
        with pytest.raises(typer.Exit):
            parsed(example.command)
        assert "Options of" in capsys.readouterr().out
        return
    name, given = parsed(example.command)
    data = given.get("data") or []
    for dataset in [data] if isinstance(data, str) else data:
        assert "@" in dataset or dataset in {status.info.name for status in pour.list_datasets()}
    if "experiment" in given and not given["experiment"].endswith(".toml"):
        assert get_experiment(given["experiment"], {}).select(given.get("methods"))
    method = given.get("method") or []
    methods = {method} if isinstance(method, str) else {*method}
    assert methods <= {info.name for info in pour.list_methods()}
    assert set(given.get("columns") or ()) <= {metric.name for metric in pour.metrics.list_metrics()}
    assert name != "weights" or given["name"] in {None, *PRETRAINED}


@pytest.mark.parametrize(
    "line", ["pour demo --fourget 3", "pour unlearn m.safetensors --method pour-p --nets 3", "pour"]
)
def test_a_line_that_is_no_command_line_fails(line: str) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|missing|pour"):
        parsed(line)


@pytest.mark.parametrize("name", ["", *COMMANDS])
@pytest.mark.parametrize("color", [False, True])
def test_the_help_shows_examples_in_sixty_columns(name: str, color: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR" if color else "NO_COLOR", "1")
    text = succeed_here(*filter(None, [name]), "--help").output
    footer = text[text.index("Example") :]
    assert max(map(len, footer.splitlines())) <= WIDTH
    assert "\x1b" not in footer
    for example in EXAMPLES[name]:
        assert all(f"   {line}\n" in footer for line in example.lines(WIDTH - 3))
    assert GUIDES[name] in footer
    assert (ROOT / GUIDES[name]).is_file()


def test_every_command_has_a_group_and_examples() -> None:
    assert set(EXAMPLES) == set(GUIDES) == {"", *COMMANDS}
    assert all(1 <= len(examples) <= 3 for examples in EXAMPLES.values())
    assert len(set(COMMANDS)) == len(COMMANDS)
    text = succeed_here("--help").output
    assert [text.index(f"─ {group} ─") for group in GROUPS] == sorted(text.index(f"─ {group} ─") for group in GROUPS)


@pytest.mark.slow
def test_the_examples_of_the_main_commands_run(tmp_path: Path) -> None:
    """An engineer pastes the examples one after the other."""
    words = ("mynet.py", "weights.pt", "images@64", "--help", "onnx")
    for name in ("train", "inspect", "unlearn", "audit", "export", "history"):
        for example in EXAMPLES[name]:
            if not any(word in example.command for word in words):
                with contextlib.chdir(tmp_path):
                    done = here(*shlex.split(example.command)[1:])
                assert done.returncode == 0, (example.command, done.stderr)
    assert {"audit.html", "network.pt", "projected.safetensors"} <= {file.name for file in tmp_path.iterdir()}
