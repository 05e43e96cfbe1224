"""pour train, pour unlearn and pour history."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import pour
from pour._files import refuse_to_overwrite, write_text
from pour._options import DEFAULT_METHOD
from pour.cli.flags import Data, Device, Forget, Out, Overwrite, PrecisionFlag, Quiet, Root, Seed
from pour.cli.terminal import open_model, show
from pour.errors import UsageError

__all__ = ["history", "train", "unlearn"]


def train(
    out: Out,
    data: Data = "digits",
    root: Root = None,
    arch: Annotated[str | None, typer.Option(help="A name from pour models.", show_default="by dataset")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="fast, long or digits.", show_default="digits for digits, else fast")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Leave out a class, by name or index: the retrained reference. May be given several times."),
    ] = None,
    weights: Annotated[Path | None, typer.Option(help="A file of weights to start from.")] = None,
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
    from pour._circumstances import circumstances
    from pour.training import Run, describe_classifier, get_recipe, train_classifier

    refuse_to_overwrite(out, overwrite=overwrite)
    run = Run(seed=seed, device=device, precision=precision, progress=not quiet)  # type: ignore[arg-type]
    chosen = get_recipe(recipe or ("digits" if data == "digits" else "fast"))
    chosen = chosen.change(epochs=epochs, lr=lr, batch_size=batch_size)
    dataset = pour.load_dataset(data, root, download=download)
    started = time.perf_counter()
    model, log = train_classifier(
        dataset,
        chosen,
        run,
        arch=arch or ("resnet-digits" if data == "digits" else "resnet18"),
        without=without or (),
        weights=weights,
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
        **described,
        "seconds": seconds,
        "training": log.to_dict(),
        **circumstances(run.torch_device, run.precision),
    }
    write_text(out.with_suffix(".json"), json.dumps(facts, indent=1))
    table = Table("split", "accuracy", title=f"{out.name}: {data}, {chosen.name}, seed {seed}")
    for name, value in described["accuracy"].items():
        table.add_row(name, f"{value:.2%}")
    show(table, quiet=quiet)
    typer.echo(out)


def unlearn(
    model: Annotated[Path, typer.Argument(help="The file of the original model.", show_default=False)],
    forget: Forget,
    out: Out,
    method: Annotated[str, typer.Option(help="A name from pour methods; its own options follow below.")] = (
        DEFAULT_METHOD
    ),
    data: Annotated[str | None, typer.Option(help="The dataset that the method may use.")] = None,
    root: Root = None,
    arch: Annotated[str | None, typer.Option(help="The architecture, for a file of plain weights.")] = None,
    num_classes: Annotated[int | None, typer.Option(help="Classes, for plain weights without --data.")] = None,
    recipe: Annotated[str | None, typer.Option(help="How the original was trained: fast, long or digits.")] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Merge a projector into the head: the same keys as before.")
    ] = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    *,
    options: dict[str, Any],
) -> None:
    """Forget classes with any method.

    --method NAME --help lists that method's own options.
    """
    from pour.data.splits import Splits
    from pour.methods import make_method, request_of

    refuse_to_overwrite(out, overwrite=overwrite)
    chosen = make_method(method, **options)
    dataset = None if data is None else pour.load_dataset(data, root)
    original = open_model(model, arch, dataset, num_classes)
    request = pour.ForgetRequest(classes=forget)
    if dataset is not None:
        request = request_of(Splits.of(dataset, forget), chosen, original, recipe=recipe, seed=seed)
    forgotten = pour.unlearn(
        original,
        request,
        method=chosen,
        seed=seed,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    if fold:
        forgotten = pour.fold(forgotten)
    pour.save(forgotten, out, overwrite=overwrite)
    records = [record.to_dict() for record in pour.history(forgotten)]
    write_text(out.with_suffix(".json"), json.dumps({"history": records}, indent=1))
    if not quiet:
        _print_history(records, title=str(out.name))
    typer.echo(out)


def history(
    file: Annotated[Path, typer.Argument(help="A file from pour.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a model has forgotten, and how."""
    from pour.models import read_header

    header = read_header(file)
    if header is None:
        raise UsageError(f"{file} was not written by pour, so it has no history.")
    records = [record.to_dict() for record in header.history]
    if as_json:
        typer.echo(json.dumps(records, indent=1))
    elif records:
        _print_history(records, title=str(file.name))
    else:
        typer.echo("Nothing was forgotten.")


def _print_history(records: list[dict[str, Any]], *, title: str) -> None:
    table = Table("method", "forgotten", "options", "steps", "weights after", title=title)
    for record in records:
        forgotten = record["class_names"] or record["classes"]
        options = ", ".join(f"{name}={value}" for name, value in record["options"].items() if value is not None)
        table.add_row(
            record["method"],
            ", ".join(map(str, forgotten)),
            options,
            str(record["steps"] or ""),
            record["digest_after"][:12],
        )
    show(table)
