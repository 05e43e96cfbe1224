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
        typer.Option(help="The folder of pour bench; its models are used.", show_default="runs/EXPERIMENT"),
    ] = None,
    root: Root = None,
    looks: Annotated[int, typer.Option(help="How often each method is measured on its way.")] = 20,
    tuning: Annotated[
        Path | None, typer.Option(help="A folder of pour tune; by default the tuned options that ship with pour.")
    ] = None,
    settings: Set = None,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """Test the paper's account of unlearning: the bound's three terms step by step, and what each class costs."""
    from pour.bench import get_experiment
    from pour.bench.study import run_study

    changes = parse_settings(settings)
    if tuning is not None:
        changes["tuning"] = str(tuning.resolve())
    folder = run_study(
        get_experiment(experiment, changes),
        out or Path("runs") / Path(experiment).stem,
        seed=seed,
        looks=looks,
        root=root,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    typer.echo(folder)
