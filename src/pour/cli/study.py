"""pour study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pour.cli.flags import BackboneWeights, Device, GridArch, GridRecipe, PrecisionFlag, Quiet, Root, Seed

__all__ = ["study"]


def study(
    experiment: Annotated[str, typer.Argument(help="digits, cifar10, cifar100 or pathmnist.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of pour bench; its models are used.", show_default="runs/EXPERIMENT"),
    ] = None,
    root: Root = None,
    looks: Annotated[int, typer.Option(help="How often each method is measured on its way.")] = 20,
    tuning: Annotated[
        Path | None, typer.Option(help="A folder of pour tune; by default the tuned options that ship with pour.")
    ] = None,
    weights: BackboneWeights = None,
    arch: GridArch = None,
    recipe: GridRecipe = None,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """Test the paper's account of unlearning: the bound's three terms step by step, and what each class costs."""
    from pour.bench import get_experiment
    from pour.bench.study import run_study

    folder = run_study(
        get_experiment(experiment, tuning=tuning, weights=weights, arch=arch, recipe=recipe),
        out or Path("runs") / experiment,
        seed=seed,
        looks=looks,
        root=root,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    typer.echo(folder)
