"""pour history."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from pour.cli.terminal import show
from pour.errors import UsageError

__all__ = ["history", "print_history"]


def history(
    file: Annotated[Path, typer.Argument(help="A file from pour.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a model has forgotten, and how."""
    from pour.models import read_header

    header = read_header(file)
    if header is None:
        raise UsageError(f"{file} was not written by pour, so it has no history.")
    records = [record.to_dict() for record in header.history]
    if as_json:
        typer.echo(json.dumps(records, indent=1))
    elif records:
        print_history(records, title=str(file.name))
    else:
        typer.echo("Nothing was forgotten.")


def print_history(records: list[dict[str, Any]], *, title: str) -> None:
    """Print the records of a model's history as a table."""
    table = Table("method", "forgotten", "options", "steps", "weights after", title=Text(title))
    for record in records:
        forgotten = record["class_names"] or record["classes"]
        options = ", ".join(f"{name}={value}" for name, value in record["options"].items() if value is not None)
        table.add_row(
            Text(record["method"]),
            Text(", ".join(map(str, forgotten))),
            Text(options),
            str(record["steps"] or ""),
            record["digest_after"][:12],
        )
    show(table)
