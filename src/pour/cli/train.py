"""pour train."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import Annotated, Literal

import typer
from rich.table import Table
from rich.text import Text

import pour
from pour._io import write_text
from pour.cli.flags import (
    RECIPES,
    Data,
    Device,
    Out,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    check_model_file,
    refuse_unread,
)
from pour.cli.scenes import train_scenes
from pour.cli.terminal import show
from pour.cli.texts import TextFile, open_text
from pour.errors import UsageError

__all__ = ["train"]


def train(
    out: Out,
    data: Data = "digits",
    root: Root = None,
    arch: Annotated[str | None, typer.Option(help="A name from pour models.", show_default="by dataset")] = None,
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
    head: Annotated[
        Literal["free", "simplex"] | None,
        typer.Option(
            help="With --freeze-backbone: any head, or one whose rows are a simplex, without a bias.",
            show_default="free",
        ),
    ] = None,
    image_size: Annotated[
        int | None,
        typer.Option(help="Resize images to this inside the network.", show_default="its own with --freeze-backbone"),
    ] = None,
    enlarge: Annotated[
        int | None,
        typer.Option(help="For segmentation: enlarge images by this inside the network.", show_default="1"),
    ] = None,
    limit: Annotated[int | None, typer.Option(help="For segmentation: only so many images of each split.")] = None,
    text: TextFile = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Instead of the recipe's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    save_every: Annotated[float, typer.Option(help="Seconds between saves of an unfinished run.")] = 20.0,
    download: Annotated[bool, typer.Option("--download", help="Fetch the dataset if it is not there.")] = False,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """Train a model; with --without, the retrained reference.

    A killed run goes on when the same command is started again.
    """
    from pour._provenance import circumstances
    from pour.data.registry import is_segmentation
    from pour.training import FrozenBackbone, Run, describe_classifier, get_recipe, train_classifier
    from pour.training.tasks.match import is_zero_shot, train_zero_shot

    check_model_file(out, overwrite=overwrite)
    if not save_every >= 0:
        raise UsageError(f"--save-every is a number of seconds, 0 or more, but is {save_every}.")
    network = arch or ("resnet-digits" if data == "digits" else "resnet18")
    flags: dict[str, object] = {"--weights": weights, "--freeze-backbone": freeze_backbone, "--head": head}
    flags |= {"--image-size": image_size, "--enlarge": enlarge, "--limit": limit, "--text": text}
    _refuse_unread_in_training(data, network, flags)
    run = Run(seed=seed, device=device, precision=precision, progress=not quiet)  # type: ignore[arg-type]
    if is_segmentation(data):
        train_scenes(
            out,
            data,
            run,
            root=root,
            arch=arch,
            recipe=recipe,
            changes={"epochs": epochs, "lr": lr, "batch_size": batch_size},
            without=without or (),
            weights=weights,
            enlarge=1 if enlarge is None else enlarge,
            limit=limit,
            save_every=save_every,
            download=download,
            overwrite=overwrite,
            quiet=quiet,
        )
        return
    usual = "head" if freeze_backbone else "digits" if data == "digits" else "fast"
    chosen = get_recipe(recipe or usual)
    chosen = chosen.change(epochs=epochs, lr=lr, batch_size=batch_size)
    dataset = pour.load_dataset(data, root, download=download)
    started = time.perf_counter()
    if freeze_backbone:
        if weights is None:
            raise UsageError("--freeze-backbone trains the head alone; pass the backbone's weights with --weights.")
        backbone = FrozenBackbone(dataset, network, weights, image_size, head or "free")
        model, log = backbone.train_head(chosen, run, without=without or ())
    elif is_zero_shot(network):
        model, log = train_zero_shot(
            dataset,
            open_text(text),
            chosen,
            run,
            arch=network,
            without=without or (),
            resume=out.with_name(f"{out.name}.resume"),
            resume_seconds=save_every,
        )
    else:
        model, log = train_classifier(
            dataset,
            chosen,
            run,
            arch=network,
            without=without or (),
            weights=weights,
            image_size=image_size,
            resume=out.with_name(f"{out.name}.resume"),
            resume_seconds=save_every,
        )
    seconds = time.perf_counter() - started
    described = describe_classifier(model, dataset, run, without=without or ())
    pour.save(model, out, overwrite=overwrite)
    facts = {
        "data": data,
        "without": without or [],
        "seed": seed,
        "recipe": dataclasses.asdict(chosen),
        "weights": weights,
        "frozen_backbone": freeze_backbone,
        "head": (head or "free") if freeze_backbone else None,
        **described,
        "seconds": seconds,
        "training": log.to_dict(),
        **circumstances(run.torch_device, run.precision),
    }
    write_text(out.with_suffix(".json"), json.dumps(facts, indent=1))
    # Names are shown as they are: what looks like markup in them is none.
    table = Table("split", "accuracy", title=Text(f"{out.name}: {data}, recipe {chosen.name}, seed {seed}"))
    for name, value in described["accuracy"].items():
        table.add_row(Text(name), f"{value:.2%}")
    show(table, quiet=quiet)
    typer.echo(out)


def _refuse_unread_in_training(data: str, network: str, flags: dict[str, object]) -> None:
    """Refuse the flags that the training of ``network`` on ``data`` does not read."""
    from pour.data.registry import is_segmentation
    from pour.training.tasks.match import is_zero_shot

    if is_segmentation(data):
        where, unread = "on segmentation data", ["--freeze-backbone", "--head", "--image-size", "--text"]
    elif is_zero_shot(network):
        where = f"with {network}"
        unread = ["--freeze-backbone", "--head", "--weights", "--image-size", "--enlarge", "--limit"]
    else:
        where, unread = f"with {network} on {data}", ["--enlarge", "--limit", "--text"]
    refuse_unread({flag: flags[flag] for flag in unread}, where)
    if not flags["--freeze-backbone"]:
        refuse_unread({"--head": flags["--head"]}, "without --freeze-backbone", "add that, or leave it out")
