"""pour bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pour
from pour.cli.flags import (
    Compile,
    Device,
    GridRecipe,
    PrecisionFlag,
    Quiet,
    Root,
    refuse_unread,
)
from pour.cli.scenes import bench_scenes
from pour.cli.terminal import tell_outcome
from pour.cli.texts import TextFile, bench_zero_shot
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.bench import Experiment as Grid

__all__ = ["bench"]


Experiment = Annotated[
    str, typer.Argument(help="digits, cifar10, cifar100, pathmnist, zeroshot, camvid or voc2012.", show_default=False)
]


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
        Path | None,
        typer.Option("--export", help="Only write the results that are there to this file, such as runs.json.gz."),
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="First take in the results of a file of --export.")
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
        bool, typer.Option("--overwrite", help="Replace the file of --export, or cells that differ from --import.")
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
    from pour.data.classes import resolve_classes

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
