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
from pour.cli.scenes import table_scenes
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
    """A benchmark's results: rich, markdown, LaTeX or CSV.

    Mean and deviation over seeds, grouped by the data that a method may see.
    """
    from pour.bench import make_class_table, make_replication_table, make_table, render, show_table
    from pour.bench.segmentation_table import is_scene_store
    from pour.bench.zeroshot_table import is_zero_shot_store, zero_shot_table

    if out is None:
        refuse_unread({"--overwrite": overwrite}, "without --out")
    else:
        refuse_to_overwrite(out, overwrite=overwrite)
    scenes, zero_shot = is_scene_store(folder), is_zero_shot_store(folder)
    if scenes or zero_shot:
        kind = "segmentation" if scenes else "zero-shot"
        unread: dict[str, object] = {"--forget": forget, "--columns": columns, "--by-class": by_class}
        refuse_unread(unread, f"in the table of a {kind} experiment")
        if against not in (None, "paper"):
            raise UsageError(f"Results of a {kind} experiment can be put against paper, not against {against!r}.")
    printed: Literal["paper"] | None = "paper" if against == "paper" else None
    if scenes:
        table_scenes(folder, format, printed, out)
        return
    if zero_shot:
        found = zero_shot_table(folder, against=printed)
    elif by_class:
        refuse_unread({"--forget": forget, "--against": against}, "with --by-class")
        found = make_class_table(folder, columns=columns or None)
    elif against is None or printed:
        found = make_table(folder, forget=forget or None, columns=columns or None, against=printed)
    elif Path(against).exists():
        if is_scene_store(Path(against)) or is_zero_shot_store(Path(against)):
            raise UsageError(f"{against} holds results of another kind of experiment; give a folder of the same.")
        found = make_replication_table(folder, against, forget=forget or None, columns=columns or None)
    else:
        raise UsageError(f"--against takes paper or results of pour bench, and there is no {against}.")
    if format == "rich" and out is None:
        show_table(found)
    elif out is None:
        typer.echo(render(found, format), nl=False)
    else:
        write_text(out, render(found, format))
        typer.echo(out)
