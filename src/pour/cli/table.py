"""pour table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pour._io import refuse_to_overwrite, write_text
from pour.cli.flags import (
    Overwrite,
    refuse_unread,
)
from pour.errors import UsageError

__all__ = ["table"]


def table(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder of pour bench, or a file of its --export.", metavar="RESULTS", show_default=False
        ),
    ],
    format: Annotated[Literal["rich", "markdown", "latex", "csv"], typer.Option(help="How to write it.")] = "rich",
    against: Annotated[
        str | None,
        typer.Option(
            help="paper: put the published values below the measured ones; other results of pour bench: theirs.",
            metavar="<paper|results>",
        ),
    ] = None,
    forget: Annotated[
        list[str] | None, typer.Option(help="Whose results: a class's name or index; several forgotten together.")
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="The classes that were forgotten in turn side by side.")
    ] = False,
    columns: Annotated[list[str] | None, typer.Option(help="Only this column; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="A file to write instead of printing.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the table of a benchmark: rich, markdown, LaTeX or CSV.

    It shows mean and deviation over seeds, in groups by the data that a method may see.
    """
    from pour.bench import make_table, render, show_table

    if out is None:
        refuse_unread({"--overwrite": overwrite}, "without --out")
    else:
        refuse_to_overwrite(out, overwrite=overwrite)
    if by_class:
        refuse_unread({"--forget": forget, "--against": against}, "with --by-class")
    if against not in (None, "paper") and not Path(against).exists():
        raise UsageError(f"--against takes paper or results of pour bench, and there is no {against}.")
    found = make_table(folder, forget=forget or None, columns=columns or None, against=against, by_class=by_class)
    if format == "rich" and out is None:
        show_table(found)
    elif out is None:
        typer.echo(render(found, format), nl=False)
    else:
        write_text(out, render(found, format))
        typer.echo(out)
