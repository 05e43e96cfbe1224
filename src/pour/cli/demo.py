"""pour demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from pour.cli.flags import Quiet, Seed

__all__ = ["demo"]


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the models and the report.")] = Path("runs/demo"),
    forget: Annotated[str, typer.Option(help="Digit to forget.")] = "3",
    seed: Seed = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """The whole story on digits, in under a minute, with a report."""
    from pour.bench.demo import run_demo

    page = run_demo(out, forget=forget, seed=seed, progress=not quiet, console=Console(quiet=quiet))
    if show:
        typer.launch(page.resolve().as_uri())
