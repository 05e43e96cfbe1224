"""pour tune."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pour._terminal import TerminalTable
from pour.cli.flags import (
    Compile,
    Device,
    ExperimentName,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    Set,
    parse_settings,
)
from pour.cli.terminal import show

__all__ = ["tune"]


def tune(
    experiment: ExperimentName,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the trials.", show_default="runs/EXPERIMENT-tuning")
    ] = None,
    rule: Annotated[
        Literal["benchmark", "user"],
        typer.Option(
            help="benchmark: choose by held-out training images. user: choose only by data that the method may read."
        ),
    ] = "benchmark",
    forget: Annotated[
        list[str] | None,
        typer.Option(
            help="Class to forget while tuning; may be given several times.",
            show_default="tuning_forget of the experiment",
        ),
    ] = None,
    settings: Set = None,
    jobs: Annotated[int, typer.Option(help="Number of methods that are tuned at the same time.")] = 1,
    batch_norm: Annotated[
        Literal["frozen", "train"],
        typer.Option(
            help="Statistics of BatchNorm in every trial: frozen, or updated by methods that read retained images."
        ),
    ] = "frozen",
    compile: Compile = False,
    seed: Seed = 100,
    root: Root = None,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """Tune methods, each with the same small budget.

    Tuning uses no class and no seed that a table reports.
    """
    from pour.bench import get_experiment, tune_experiment

    folder = out or Path("runs") / f"{Path(experiment).stem}-tuning"
    results = tune_experiment(
        get_experiment(experiment, parse_settings(settings)),
        folder,
        methods=method,
        rule=rule,
        forget=forget,
        seed=seed,
        batch_norm=batch_norm,
        root=root,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        jobs=jobs,
        compile=compile,
        progress=not quiet,
    )
    columns = ["method", "options", "AUS", "reason for the choice"]
    drawn = TerminalTable(columns, right=["AUS"], prose=["options", "reason for the choice"])
    for result in results:
        best = None if result.best is None else result.trials[result.best]
        options = "" if best is None else ", ".join(f"{name}={value}" for name, value in best.options.items())
        score = "" if best is None or best.aus is None else f"{best.aus:.3f}"
        drawn.add_row(result.method, options, score, result.note)
    show(drawn, quiet=quiet)
    typer.echo(folder)
