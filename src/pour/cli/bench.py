"""pour bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pour.cli.flags import (
    MORE,
    Compile,
    Device,
    ExperimentName,
    PrecisionFlag,
    Quiet,
    Root,
    Set,
    parse_settings,
    refuse_unread,
)

__all__ = ["bench"]


def bench(
    experiment: ExperimentName,
    out: Annotated[Path | None, typer.Option(help="Folder of the results.", show_default="runs/EXPERIMENT")] = None,
    root: Root = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Only this method (delete) or row (delete-common); may be given several times."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Number of seeds (3), or the seeds (1,2).", show_default="the experiment's")
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="Forget this class instead of the classes of the experiment; may be given several times."),
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="Folder of pour tune; by default the tuned options that ship with pour.")
    ] = None,
    settings: Set = None,
    jobs: Annotated[int, typer.Option(help="Number of cells that are computed at the same time.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster: auto, local or HOST:PORT.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Only write the stored results to this file, such as runs.json.gz.")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="First add the results of a file of --export.")
    ] = None,
    compile: Compile = False,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace the file of --export, or cells that differ from --import.",
            rich_help_panel=MORE,
        ),
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Compute the results of an experiment, and show its table; resumes a stopped run."""
    from pour.bench import (
        export_store,
        get_experiment,
        import_store,
        make_table,
        parse_seeds,
        run_experiment,
        show_table,
    )
    from pour.bench.executors import check_workers
    from pour.bench.grid import requests_of
    from pour.bench.rendering import save_bars
    from pour.bench.shared_models import SharedModels
    from pour.training.run import Run

    if export is not None:
        flags: dict[str, object] = {"--methods": methods, "--seeds": seeds, "--forget": forget, "--root": root}
        flags |= {"--tuning": tuning, "--set": settings, "--jobs": None if jobs == 1 else jobs, "--ray": ray}
        refuse_unread({**flags, "--compile": compile, "--device": device, "--precision": precision}, "with --export")
    elif import_ is None:
        refuse_unread({"--overwrite": overwrite}, "without --export or --import")
    changes: dict[str, Any] = parse_settings(settings)
    if tuning is not None:
        changes["tuning"] = str(tuning.resolve())
    grid = get_experiment(experiment, changes)
    folder = out or Path("runs") / Path(experiment).stem
    chosen_seeds = None if seeds is None else parse_seeds(seeds)
    if import_ is not None:
        # All flags are checked before the import, so that an error does not leave the work half done.
        grid.select(methods)
        check_workers(jobs, ray)
        run = Run(device=None if ray is not None else device, precision=precision)  # type: ignore[arg-type]
        requests_of(SharedModels(grid, folder, root, str(run.device), run.precision), forget)
        new = import_store(import_, folder, overwrite=overwrite, experiment=grid.name)
        typer.echo(f"{new} new cells from {import_}")
    if export is not None:
        count = export_store(folder, export, overwrite=overwrite, experiment=grid.name)
        typer.echo(f"{count} cells in {export}")
        return
    outcome = run_experiment(
        grid,
        folder,
        root=root,
        methods=methods,
        seeds=chosen_seeds,
        forget=forget,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        jobs=jobs,
        ray=ray,
        compile=compile,
        progress=not quiet,
    )
    # The work is reported before the table, which can fail for cells that are not comparable.
    for sentence in outcome.failed:
        typer.echo(f"failed: {sentence}", err=True)
    typer.echo(f"{outcome.done} cells computed, {outcome.kept} were already stored: {folder}")
    if not quiet:
        save_bars(folder)
        # By default only the experiment's first request.
        for request in outcome.requests if forget else (None,):
            show_table(make_table(folder, forget=request))
