"""pour weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pour._terminal import TerminalTable
from pour.cli.flags import Overwrite, refuse_unread
from pour.cli.terminal import show
from pour.errors import UsageError

__all__ = ["weights"]


def weights(
    name: Annotated[
        str | None, typer.Argument(help="Name of the weights to write; without a name the weights are listed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write, *.safetensors.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """List or write pretrained weights of installed packages, for --weights."""
    from pour.models.networks.pretrained import PRETRAINED, write_pretrained

    if name is not None:
        if out is None:
            raise UsageError(f"{name} needs a file to write; pass --out FILE.safetensors.")
        typer.echo(write_pretrained(name, out, overwrite=overwrite))
        return
    refuse_unread({"--out": out, "--overwrite": overwrite}, "without a name", "name the weights to write")
    table = TerminalTable(["weights", "for --arch", "package", "mean", "std", "network"], prose=["network"])
    for key, entry in PRETRAINED.items():
        mean, std = (" ".join(map(str, values)) for values in (entry.mean, entry.std))
        table.add_row(key, entry.arch, entry.package, mean, std, entry.summary)
    show(table)
