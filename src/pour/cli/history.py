"""pour history."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from pour.cli.terminal import show
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.models.history import HistoryEntry

__all__ = ["history", "print_history"]


def history(
    file: Annotated[Path, typer.Argument(help="A file from pour.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the classes that a model has forgotten, with methods and options."""
    from pour.models import read_header

    header = read_header(file)
    if header is None:
        raise UsageError(f"{file} was not written by pour, so it has no history.")
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in header.history], indent=1))
    elif header.history:
        print_history(header.history, title=str(file.name))
    else:
        typer.echo("Nothing was forgotten.")


def print_history(entries: Sequence[HistoryEntry], *, title: str) -> None:
    """Print the history of a model as a table, with one row per entry."""
    table = Table("method", "forgotten", "options", "steps", "weights after", title=Text(title))
    for entry in entries:
        options = ", ".join(f"{name}={value}" for name, value in entry.options.items() if value is not None)
        table.add_row(
            Text(entry.method),
            Text(", ".join(map(str, entry.class_names or entry.classes))),
            Text(options),
            str(entry.steps or ""),
            entry.digest_after[:12],
        )
    show(table)
