"""pour history."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from pour.cli.terminal import show
from pour.errors import UsageError

__all__ = ["history"]


def history(
    file: Annotated[Path, typer.Argument(help="Model file of pour.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the classes that a model has forgotten, with methods and options."""
    from pour.models import read_header
    from pour.models.history import History

    header = read_header(file)
    if header is None:
        raise UsageError(f"{file} was not written by pour, so it has no history.")
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in header.history], indent=1))
    else:
        show(Text(file.name))
        show(History(header.history))
