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
            help="Folder of pour bench, or file of pour bench --export.", metavar="RESULTS", show_default=False
        ),
    ],
    format: Annotated[Literal["rich", "markdown", "latex", "csv"], typer.Option(help="Format of the table.")] = "rich",
    against: Annotated[
        str | None,
        typer.Option(
            help="paper, or other results of pour bench: show their values below these values.",
            metavar="<paper|results>",
        ),
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="Forgotten class of the results, by name or index; several if they were forgotten together."),
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="One column per class, if the classes were forgotten one at a time.")
    ] = False,
    columns: Annotated[list[str] | None, typer.Option(help="Only this column; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the table to this file instead of printing it.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Print the table of a benchmark: rich, Markdown, LaTeX or CSV.

    Values are means and deviations over seeds. Rows are grouped by the data that a method may read.
    """
    from pour.bench import make_table, render, show_table

    if out is None:
        refuse_unread({"--overwrite": overwrite}, "without --out")
    else:
        refuse_to_overwrite(out, overwrite=overwrite)
    if by_class:
        refuse_unread({"--forget": forget, "--against": against}, "with --by-class")
    if against not in (None, "paper") and not Path(against).exists():
        raise UsageError(f"--against takes paper or results of pour bench, but {against} does not exist.")
    result_table = make_table(
        folder, forget=forget or None, columns=columns or None, against=against, by_class=by_class
    )
    if format == "rich" and out is None:
        show_table(result_table)
    elif out is None:
        typer.echo(render(result_table, format), nl=False)
    else:
        write_text(out, render(result_table, format))
        typer.echo(out)
