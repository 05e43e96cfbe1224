"""pour view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["view"]


def view(
    folder: Annotated[Path, typer.Argument(help="A folder with reports in it.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one.")] = 0,
    host: Annotated[str, typer.Option(help="The address to listen on; anything but this machine needs --remote.")] = (
        "127.0.0.1"
    ),
    remote: Annotated[bool, typer.Option("--remote", help="Let other machines in.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Show reports side by side in a browser, on this machine only."""
    from pour.report import ReportServer

    with ReportServer(folder, port=port, host=host, allow_remote=remote) as server:
        typer.echo(f"{server.url}  (Ctrl-C ends)")
        if show:
            typer.launch(server.url)
        server.run()
