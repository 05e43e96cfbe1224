"""pour train, pour unlearn and pour history."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

import pour
from pour._files import write_text
from pour._options import DEFAULT_METHOD
from pour.cli.bottom_line import bottom_line, forget_accuracies
from pour.cli.flags import (
    Compile,
    Data,
    Device,
    Mean,
    Out,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    Std,
    check_model_file,
    refuse_unread,
)
from pour.cli.scenes import open_segmenter, request_scenes, train_scenes
from pour.cli.terminal import PlainWeights, open_model, open_own, show
from pour.cli.zeroshot import Concept, ConceptPart, TextFile, forget_by_text, open_text
from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from pour.methods import Method

__all__ = ["history", "train", "unlearn"]

# Written out, because the recipes themselves load torch, which a mere --help should not.
_RECIPES = "One of fast, long, short, digits, head, scenes."


def train(
    out: Out,
    data: Data = "digits",
    root: Root = None,
    arch: Annotated[str | None, typer.Option(help="A name from pour models.", show_default="by dataset")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help=f"How to train. {_RECIPES}", show_default="by dataset, head with --freeze-backbone"),
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
    from pour._circumstances import circumstances
    from pour.data.registry import is_segmentation
    from pour.training import FrozenBackbone, Run, describe_classifier, get_recipe, train_classifier
    from pour.training.zeroshot import is_zero_shot, train_zero_shot

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
    from pour.training.zeroshot import is_zero_shot

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


def unlearn(
    model: Annotated[Path, typer.Argument(help="The file of the original model.", show_default=False)],
    out: Out,
    forget: Annotated[
        list[str] | None, typer.Option(help="A class to forget, by name or index; may be given several times.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="A name from pour methods; its own options follow below.", show_default=DEFAULT_METHOD),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="The dataset whose images the method may use; pour-p needs none.")
    ] = None,
    root: Root = None,
    arch: Annotated[str | None, typer.Option(help="The architecture, for a file of plain weights.")] = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: Annotated[int | None, typer.Option(help="Classes, for plain weights without --data.")] = None,
    recipe: Annotated[str | None, typer.Option(help=f"How the original was trained. {_RECIPES}")] = None,
    fold: Annotated[
        bool, typer.Option("--fold", help="Merge a projector into the head: the same keys as before.")
    ] = False,
    concept: Concept = None,
    concept_part: ConceptPart = None,
    text: TextFile = None,
    compile: Compile = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
    *,
    options: dict[str, Any],
) -> None:
    """Forget classes, by default with pour-a, which needs images of these classes alone (--data).

    --method NAME --help lists that method's own options.
    """
    from pour.data.registry import is_segmentation
    from pour.data.splits import Splits
    from pour.methods import make_method, request_of
    from pour.training import Run

    check_model_file(out, overwrite=overwrite)
    if bool(forget) == bool(concept):
        raise UsageError("Name what to forget, with --forget (a class) or --concept (words), and not both.")
    flags: dict[str, object] = {"--method": method, "--data": data, "--root": root, "--arch": arch}
    flags |= {"--mean": mean, "--std": std, "--num-classes": num_classes, "--recipe": recipe}
    flags |= {"--compile": compile, "--device": device, "--precision": precision}
    flags |= {"--text": text, "--concept-part": concept_part}
    _refuse_unread_in_unlearning(bool(concept), flags, options)
    if concept:
        original = open_own(model, "--concept is for zero-shot classifiers that pour train has written")
        forgotten = forget_by_text(original, concept, text, concept_part)
        records = _keep(forgotten, out, fold, overwrite)
        if not quiet:
            record = dataclasses.replace(pour.history(forgotten)[-1], class_names=tuple(concept))
            typer.echo(bottom_line(record, None))
            _print_history(records, title=str(out.name))
        typer.echo(out)
        return
    forget = forget or []
    chosen = make_method(method or DEFAULT_METHOD, **options)
    _require_data(chosen, data, recipe)
    plain = PlainWeights.of(arch, mean, std, model)
    dataset = None
    if data is not None and is_segmentation(data):
        scenes, request = request_scenes(data, root, forget, chosen)
        original = open_segmenter(model, plain, scenes)
    else:
        dataset = None if data is None else pour.load_dataset(data, root)
        original = open_model(model, plain, dataset, num_classes)
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
        compile=compile,
    )
    # The model is saved first, so that an error in the measurement does not lose it.
    records = _keep(forgotten, out, fold, overwrite)
    if not quiet:
        run = Run(seed=seed, device=device, progress=False)
        accuracies = forget_accuracies(original, forgotten, request, run)
        typer.echo(bottom_line(pour.history(forgotten)[-1], accuracies, pixels=request.pixelwise))
        _print_history(records, title=str(out.name))
    typer.echo(out)


def _require_data(method: Method, data: str | None, recipe: str | None) -> None:
    """Name the flags that give a method what it needs."""
    if method.needs and data is None:
        kinds = [kind for need, kind in (("forget", "forgotten"), ("retain", "retained")) if need in method.needs]
        what = f"images of the {' and '.join(kinds)} classes" if kinds else "images"
        raise UsageError(f"{method.name} needs {what}; name their dataset with --data.")
    if method.name == "retrain" and recipe is None and method.options()["recipe"] is None:
        raise UsageError("retrain must know how the original was trained; name its recipe with --recipe.")


def _refuse_unread_in_unlearning(by_words: bool, flags: dict[str, object], options: dict[str, Any]) -> None:
    """Refuse the flags, and the options of a method, that forgetting by words or by classes does not read."""
    from pour.data.registry import is_segmentation

    words = {flag: flags[flag] for flag in ("--text", "--concept-part")}
    if by_words:
        unread = {flag: value for flag, value in flags.items() if flag not in words}
        unread |= {f"--{name.replace('_', '-')}": True for name in options}
        refuse_unread(unread, "with --concept", "words are forgotten in closed form, without data, so leave it out")
        return
    refuse_unread(words, "with --forget", "it is for --concept, so leave it out")
    if flags["--data"] is None:
        refuse_unread(
            {flag: flags[flag] for flag in ("--root", "--recipe")}, "without --data", "add that, or leave it out"
        )
    else:
        refuse_unread({"--num-classes": flags["--num-classes"]}, "with --data")
        if is_segmentation(str(flags["--data"])):
            refuse_unread({"--recipe": flags["--recipe"]}, "on segmentation data")
    if flags["--arch"] is None:
        refuse_unread({"--num-classes": flags["--num-classes"]}, "without --arch", "add that, or leave it out")


def _keep(forgotten: nn.Module, out: Path, fold: bool, overwrite: bool) -> list[dict[str, Any]]:
    """Save a model that has forgotten, and its history as JSON next to it. Return the history."""
    if fold:
        forgotten = pour.fold(forgotten)
    pour.save(forgotten, out, overwrite=overwrite)
    records = [record.to_dict() for record in pour.history(forgotten)]
    write_text(out.with_suffix(".json"), json.dumps({"history": records}, indent=1))
    return records


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
    table = Table("method", "forgotten", "options", "steps", "weights after", title=Text(title))
    for record in records:
        forgotten = record["class_names"] or record["classes"]
        options = ", ".join(f"{name}={value}" for name, value in record["options"].items() if value is not None)
        table.add_row(
            Text(record["method"]),
            Text(", ".join(map(str, forgotten))),
            Text(options),
            str(record["steps"] or ""),
            record["digest_after"][:12],
        )
    show(table)
