"""Flags that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "Compile",
    "Data",
    "Device",
    "Forget",
    "GridArch",
    "GridRecipe",
    "Out",
    "Overwrite",
    "PrecisionFlag",
    "Quiet",
    "Root",
    "Seed",
]

Out = Annotated[Path, typer.Option(help="The file to write.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]
Data = Annotated[str, typer.Option(help="A dataset: a name from pour datasets, folder:PATH or FILE.npz.")]
Root = Annotated[Path | None, typer.Option(help="The data folder; by default POUR_DATA or ~/.cache/pour.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0; by default the GPU where there is one.")]
Seed = Annotated[int, typer.Option(help="Fixes everything random.")]
PrecisionFlag = Annotated[
    str | None, typer.Option("--precision", help="fp32 or bf16; by default bf16 on a GPU that has it.")
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Compile the encoders that methods train; pays on a GPU, for many runs.")
]
GridArch = Annotated[
    str | None, typer.Option(help="For cifar10 and cifar100: another network.", show_default="resnet18")
]
GridRecipe = Annotated[
    str | None, typer.Option(help="For cifar10 and cifar100: how models are trained.", show_default="fast, long")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no table.")]
Forget = Annotated[
    list[str], typer.Option(help="A class to forget, by name or index; may be given several times.", show_default=False)
]
