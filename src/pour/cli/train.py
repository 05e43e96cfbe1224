"""pour train."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Annotated

import typer

import pour
from pour._io import write_text
from pour._terminal import TerminalTable
from pour.cli.flags import (
    MORE,
    RECIPES,
    Data,
    Device,
    Out,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    Set,
    check_model_file,
    parse_settings,
    refuse_unread,
)
from pour.cli.interruption import resume_file
from pour.cli.terminal import show
from pour.errors import UsageError

__all__ = ["train"]


def train(
    out: Out,
    data: Data = "digits",
    root: Root = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="A name from pour models, or a network of your own, as FILE.py:NAME or package.module:NAME.",
            show_default="by dataset",
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help=f"How to train. {RECIPES}", show_default="by dataset, head with --freeze-backbone"),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave out a class, by name or index: the retrained reference. May be given several times."),
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Weights to start from: a file, or a name from pour weights.")
    ] = None,
    freeze_backbone: Annotated[
        bool, typer.Option("--freeze-backbone", help="Train only the head, on features that are computed once.")
    ] = False,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs.", show_default="by recipe")] = None,
    seed: Seed = 0,
    device: Device = None,
    download: Annotated[bool, typer.Option("--download", help="Fetch the dataset if it is missing.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    settings: Set = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Resize images to this size inside the network.",
            show_default="its own with --freeze-backbone",
            rich_help_panel=MORE,
        ),
    ] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="by recipe", rich_help_panel=MORE)] = (
        None
    ),
    batch_size: Annotated[
        int | None, typer.Option(help="Samples per batch.", show_default="by recipe", rich_help_panel=MORE)
    ] = None,
    precision: PrecisionFlag = None,
    save_every: Annotated[
        float, typer.Option(help="Seconds between saves of an unfinished run.", rich_help_panel=MORE)
    ] = 20.0,
) -> None:
    """Train a model; with --without, the retrained reference.

    A killed run resumes when the same command is started again.
    """
    from pour._provenance import circumstances
    from pour.training import Run, get_recipe
    from pour.training.tasks.task import find_task, get_task, setting_names

    check_model_file(out, overwrite=overwrite)
    if not save_every >= 0:
        raise UsageError(f"--save-every is a number of seconds, 0 or more, but is {save_every}.")
    name = find_task(data, arch)
    flags = {"weights": weights, "freeze_backbone": freeze_backbone or None, "image_size": image_size}
    unread = {f"--{key.replace('_', '-')}": value for key, value in flags.items() if key not in setting_names(name)}
    refuse_unread(unread, f"with {arch or get_task(name).defaults(data)[0]} on {data}")
    recipe_flags = {"recipe.epochs": epochs, "recipe.lr": lr, "recipe.batch_size": batch_size}
    changes = {key: value for key, value in {**flags, **recipe_flags}.items() if value is not None}
    changes |= parse_settings(settings)
    of_recipe = {key: changes.pop(key) for key in list(changes) if key.startswith("recipe.")}
    task = get_task(name, **changes)
    default_arch, default_recipe = task.defaults(data)
    network = arch or default_arch
    training = get_recipe(
        recipe or default_recipe, {key.removeprefix("recipe."): value for key, value in of_recipe.items()}
    )
    run = Run(seed=seed, device=device, precision=precision, progress=not quiet)  # type: ignore[arg-type]
    dataset = task.load(data, root, download=download)
    started = time.perf_counter()
    model, log = task.train(
        dataset,
        training,
        run,
        arch=network,
        without=without or (),
        resume=resume_file(out),
        resume_seconds=save_every,
    )
    seconds = time.perf_counter() - started
    described = task.describe(model, dataset, run, without=without or ())
    task.record_scores(model, described)
    pour.save(model, out, overwrite=overwrite)
    facts = {
        "data": data,
        "task": name,
        "without": without or [],
        "seed": seed,
        "recipe": dataclasses.asdict(training),
        "settings": dataclasses.asdict(task),
        **described,
        "seconds": seconds,
        "training": log.to_dict(),
        **circumstances(run.torch_device, run.precision),
    }
    write_text(out.with_suffix(".json"), json.dumps(facts, indent=1))
    head, lines = task.summary(described)
    table = TerminalTable([*head], f"{out.name}: {data}, recipe {training.name}, seed {seed}", right=head[1:])
    for line in lines:
        table.add_row(*line)
    show(table, quiet=quiet)
    typer.echo(out)
