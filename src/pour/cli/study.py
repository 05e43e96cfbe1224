"""pour study."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pour.cli.flags import Device, ExperimentName, PrecisionFlag, Quiet, Root, Seed, Set, parse_settings

__all__ = ["study"]


def study(
    experiment: ExperimentName,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of pour bench, whose models are used.", show_default="runs/EXPERIMENT"),
    ] = None,
    root: Root = None,
    looks: Annotated[int, typer.Option(help="Number of measurements during each method's training.")] = 20,
    settings: Set = None,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """Measure the three terms of the bound during training, and the cost of forgetting each class."""
    from pour.bench import get_experiment
    from pour.bench.study import run_study

    folder = run_study(
        get_experiment(experiment, parse_settings(settings)),
        out or Path("runs") / Path(experiment).stem,
        seed=seed,
        looks=looks,
        root=root,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    typer.echo(folder)
