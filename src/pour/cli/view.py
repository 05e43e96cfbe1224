"""pour view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["view"]


def view(
    folder: Annotated[Path, typer.Argument(help="Folder of reports.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port of the server; 0 chooses a free port.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address of the server; another address than this machine needs --remote.")
    ] = ("127.0.0.1"),
    remote: Annotated[bool, typer.Option("--remote", help="Allow other machines to connect.")] = False,
    show: Annotated[bool, typer.Option("--open", help="Open a browser.")] = False,
) -> None:
    """Show and compare reports in a browser, by default on this machine only."""
    from pour.report import ReportServer

    with ReportServer(folder, port=port, host=host, allow_remote=remote) as server:
        typer.echo(f"{server.url}  (Ctrl-C ends)")
        if show:
            typer.launch(server.url)
        server.run()
