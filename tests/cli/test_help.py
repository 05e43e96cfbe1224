"""The number of flags that a command has, and the number that its help shows first."""

from __future__ import annotations

import pytest
import typer

from pour.cli import COMMANDS, make_app
from pour.cli.flags import MORE

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
