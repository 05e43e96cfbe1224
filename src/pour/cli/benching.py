"""pour bench, pour table and pour tune."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

import pour
from pour._files import refuse_to_overwrite, write_text
from pour.cli.flags import (
    BackboneWeights,
    Compile,
    Device,
    GridArch,
    GridRecipe,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    refuse_unread,
)
from pour.cli.scenes import bench_scenes, table_scenes
from pour.cli.terminal import show, tell_outcome
from pour.cli.zeroshot import TextFile, bench_zero_shot
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.bench import Experiment as Grid

__all__ = ["bench", "table", "tune"]

Experiment = Annotated[
    str, typer.Argument(help="digits, cifar10, cifar100, pathmnist, zeroshot, camvid or voc2012.", show_default=False)
]

Tunable = Annotated[str, typer.Argument(help="digits, cifar10, cifar100 or pathmnist.", show_default=False)]


def bench(
    experiment: Experiment,
    out: Annotated[Path | None, typer.Option(help="The folder of the results.", show_default="runs/EXPERIMENT")] = None,
    root: Root = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(help="Only this method (delete) or row (delete-common); may be given several times."),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="How many seeds (3), or which (1,2).", show_default="the experiment's")
    ] = None,
    forget: Annotated[
        list[str] | None,
        typer.Option(help="A class to forget instead of the experiment's; each is a request of its own."),
    ] = None,
    tuning: Annotated[
        Path | None, typer.Option(help="A folder of pour tune; by default the tuned options that ship with pour.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Cells side by side.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster: auto, local or HOST:PORT.")] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Only write the results that are there to this tar file.")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="First take in the results of this tar file.")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Weights that training starts from: a file, or a name from pour weights.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="For segmentation and zeroshot: instead of the recipe's.")] = None,
    limit: Annotated[int | None, typer.Option(help="For segmentation: only so many images of each split.")] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="For cifar10 and cifar100 another network than resnet18, for pathmnist the backbone. For zeroshot: "
            "clip-resnet18 is trained; hf:FOLDER, hf:NAME and open_clip:ARCH@WEIGHTS are pretrained."
        ),
    ] = None,
    recipe: GridRecipe = None,
    data: Annotated[
        str | None, typer.Option(help="For zeroshot: the images, such as folder:PATH@224.", show_default="cifar100")
    ] = None,
    text: TextFile = None,
    names: Annotated[
        Path | None, typer.Option(help="For zeroshot: a file with a line CLASS NAME for each folder of images.")
    ] = None,
    compile: Compile = False,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the tar file of --export, or cells that differ from --import.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Make a table of the paper again; resumes where it stopped."""
    from pour.bench import (
        export_store,
        get_experiment,
        import_store,
        make_table,
        parse_seeds,
        run_experiment,
        show_table,
    )
    from pour.bench.experiments import EXPERIMENTS
    from pour.data.registry import is_segmentation
    from pour.training.run import Run

    folder = out or Path("runs") / experiment
    chosen_seeds = None if seeds is None else parse_seeds(seeds)
    flags: dict[str, object] = {
        "--tuning": tuning,
        "--ray": ray,
        "--weights": weights,
        "--epochs": epochs,
        "--limit": limit,
    }
    flags |= {"--compile": compile, "--arch": arch, "--recipe": recipe}
    flags |= {"--data": data, "--text": text, "--names": names, "--jobs": None if jobs == 1 else jobs}
    _refuse_foreign(experiment, flags)
    if export is not None:
        flags |= {"--methods": methods, "--seeds": seeds, "--forget": forget, "--root": root}
        refuse_unread({**flags, "--device": device, "--precision": precision}, "with --export")
    elif import_ is None:
        refuse_unread({"--overwrite": overwrite}, "without --export or --import")
    grid = None
    if experiment in EXPERIMENTS:
        # Whatever is wrong with the rest of the command is told before anything is taken in.
        grid = get_experiment(experiment, tuning=tuning, weights=weights, arch=arch, recipe=recipe)
        grid.select(methods)
        if jobs < 1:
            raise UsageError(f"The number of jobs must be at least 1, but is {jobs}.")
        if import_ is not None:
            Run(device=None if ray is not None else device, precision=precision)  # type: ignore[arg-type]
            _requests(grid, root, forget)
    if import_ is not None:
        new = import_store(import_, folder, overwrite=overwrite, experiment=experiment)
        typer.echo(f"{new} new cells from {import_}")
    if export is not None:
        count = export_store(folder, export, overwrite=overwrite, experiment=experiment)
        typer.echo(f"{count} cells in {export}")
        return
    if is_segmentation(experiment):
        bench_scenes(
            experiment,
            folder,
            root=root,
            weights=weights,
            methods=methods,
            seeds=chosen_seeds,
            forget=forget,
            epochs=epochs,
            limit=limit,
            device=device,
            precision=precision,
            quiet=quiet,
        )
        return
    if grid is None:
        bench_zero_shot(
            folder,
            arch=arch,
            data=data,
            text=text,
            names=names,
            root=root,
            rows=methods,
            seeds=chosen_seeds,
            forget=forget,
            epochs=epochs,
            device=device,
            precision=precision,
            quiet=quiet,
        )
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
    # What was done is told even where the store as a whole makes no table.
    tell_outcome(outcome, folder)
    if not quiet:
        for request in _requests(grid, root, forget):
            show_table(make_table(folder, forget=request))


def _requests(grid: Grid, root: Path | None, forget: list[str] | None) -> list[tuple[int, ...] | None]:
    """The requests that --forget names, by index; without it None, which stands for the experiment's first."""
    from pour.models.classes import resolve_classes

    if not forget:
        return [None]
    dataset = pour.load_dataset(grid.dataset, root)
    size, names = dataset.num_classes, dataset.classes
    return list(dict.fromkeys(resolve_classes(name, num_classes=size, class_names=names) for name in forget))


def _refuse_foreign(experiment: str, flags: dict[str, object]) -> None:
    """Say that a flag is for other experiments, instead of leaving it unread; or that there is no such experiment."""
    from pour.bench.experiments import EXPERIMENTS
    from pour.bench.segmentation_experiment import SCENE_EXPERIMENTS

    everything = (*EXPERIMENTS, "zeroshot", *SCENE_EXPERIMENTS)
    if experiment not in everything:
        raise UsageError(f"There is no experiment {experiment!r}; the experiments are {', '.join(everything)}.")
    grid = {"--tuning", "--ray", "--jobs", "--compile"}
    scenes = {"--weights", "--epochs", "--limit"}
    known = {
        "camvid": scenes,
        "voc2012": scenes,
        "zeroshot": {"--epochs", "--arch", "--data", "--text", "--names"},
        "pathmnist": {*grid, "--weights", "--arch"},
        "cifar10": {*grid, "--arch", "--recipe"},
        "cifar100": {*grid, "--arch", "--recipe"},
    }.get(experiment, grid)
    foreign = {flag: value for flag, value in flags.items() if flag not in known}
    refuse_unread(foreign, f"in {experiment}", f"it has {', '.join(sorted(known))}")


def table(
    folder: Annotated[Path, typer.Argument(help="The folder of pour bench.", show_default=False)],
    format: Annotated[Literal["rich", "markdown", "latex", "csv"], typer.Option(help="How to write it.")] = "rich",
    against: Annotated[
        str | None,
        typer.Option(
            help="paper: put the published values below the measured ones; a folder of pour bench: its own.",
            metavar="<paper|folder>",
        ),
    ] = None,
    forget: Annotated[
        list[str] | None, typer.Option(help="Whose results: a class's name or index; several forgotten together.")
    ] = None,
    by_class: Annotated[
        bool, typer.Option("--by-class", help="The classes that were forgotten in turn side by side.")
    ] = False,
    columns: Annotated[list[str] | None, typer.Option(help="Only this column; may be given several times.")] = None,
    out: Annotated[Path | None, typer.Option(help="A file to write instead of printing.")] = None,
    overwrite: Overwrite = False,
) -> None:
    """A benchmark's results: rich, markdown, LaTeX or CSV.

    Mean and deviation over seeds, grouped by the data that a method may see.
    """
    from pour.bench import make_class_table, make_replication_table, make_table, render, show_table
    from pour.bench.segmentation_table import is_scene_store
    from pour.bench.zeroshot_table import is_zero_shot_store, zero_shot_table

    if out is None:
        refuse_unread({"--overwrite": overwrite}, "without --out")
    else:
        refuse_to_overwrite(out, overwrite=overwrite)
    scenes, zero_shot = is_scene_store(folder), is_zero_shot_store(folder)
    if scenes or zero_shot:
        kind = "segmentation" if scenes else "zero-shot"
        unread: dict[str, object] = {"--forget": forget, "--columns": columns, "--by-class": by_class}
        refuse_unread(unread, f"in the table of a {kind} experiment")
        if against not in (None, "paper"):
            raise UsageError(f"Results of a {kind} experiment can be put against paper, not against {against!r}.")
    printed: Literal["paper"] | None = "paper" if against == "paper" else None
    if scenes:
        table_scenes(folder, format, printed, out)
        return
    if zero_shot:
        found = zero_shot_table(folder, against=printed)
    elif by_class:
        refuse_unread({"--forget": forget, "--against": against}, "with --by-class")
        found = make_class_table(folder, columns=columns or None)
    elif against is None or printed:
        found = make_table(folder, forget=forget or None, columns=columns or None, against=printed)
    elif Path(against).is_dir():
        if is_scene_store(Path(against)) or is_zero_shot_store(Path(against)):
            raise UsageError(f"{against} holds results of another kind of experiment; give a folder of the same.")
        found = make_replication_table(folder, against, forget=forget or None, columns=columns or None)
    else:
        raise UsageError(f"--against takes paper or a folder of pour bench, and there is no folder {against}.")
    if format == "rich" and out is None:
        show_table(found)
    elif out is None:
        typer.echo(render(found, format), nl=False)
    else:
        write_text(out, render(found, format))
        typer.echo(out)


def tune(
    experiment: Tunable,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder for the trials.", show_default="runs/EXPERIMENT-tuning")
    ] = None,
    rule: Annotated[
        Literal["benchmark", "user"], typer.Option(help="user: only data that the method may see decide.")
    ] = "benchmark",
    forget: Annotated[
        list[str] | None,
        typer.Option(
            help="Classes to forget while tuning.",
            show_default="8 on digits, 4 on cifar10, 42 on cifar100, 3 on pathmnist",
        ),
    ] = None,
    weights: BackboneWeights = None,
    arch: GridArch = None,
    recipe: GridRecipe = None,
    jobs: Annotated[int, typer.Option(help="Methods side by side.")] = 1,
    batch_norm: Annotated[
        Literal["frozen", "train"],
        typer.Option(help="BatchNorm's statistics in every trial; methods with retained images may let them train."),
    ] = "frozen",
    compile: Compile = False,
    seed: Seed = 100,
    root: Root = None,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """The same small tuning budget for every method.

    Never on a class or seed that a table reports.
    """
    from pour.bench import get_experiment, tune_experiment
    from pour.bench.experiments import EXPERIMENTS
    from pour.data.registry import is_segmentation

    if experiment == "zeroshot" or is_segmentation(experiment):
        raise UsageError(f"{experiment} has nothing to tune; the experiments to tune are {', '.join(EXPERIMENTS)}.")
    folder = out or Path("runs") / f"{experiment}-tuning"
    results = tune_experiment(
        get_experiment(experiment, weights=weights, arch=arch, recipe=recipe),
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
    drawn = Table("method", "options", "AUS", "how it was chosen")
    for result in results:
        best = None if result.best is None else result.trials[result.best]
        options = "" if best is None else ", ".join(f"{name}={value}" for name, value in best.options.items())
        score = "" if best is None or best.aus is None else f"{best.aus:.3f}"
        drawn.add_row(result.method, Text(options), score, Text(result.note))
    show(drawn, quiet=quiet)
    typer.echo(folder)
