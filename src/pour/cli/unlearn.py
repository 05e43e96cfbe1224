"""pour unlearn."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pour
from pour._io import write_text
from pour.cli.bottom_line import bottom_line, forget_accuracies
from pour.cli.flags import (
    RECIPES,
    Arch,
    Compile,
    Device,
    Force,
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
from pour.cli.method_flags import DEFAULT_METHOD
from pour.cli.terminal import PlainWeights, open_model, open_own, require_clear_head, show
from pour.cli.texts import Concept, ConceptPart, TextFile, forget_by_text
from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from pour.models.history import History
    from pour.unlearning import Method

__all__ = ["unlearn"]


def unlearn(
    model: Annotated[Path, typer.Argument(help="File of the original model.", show_default=False)],
    out: Out,
    forget: Annotated[
        list[str] | None, typer.Option(help="Class to forget, by name or index; may be given several times.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Name from pour methods; the options of the method are listed below.", show_default=DEFAULT_METHOD
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Dataset whose images the method may use; pour-p needs none.")
    ] = None,
    root: Root = None,
    arch: Arch = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Number of classes, for plain weights without --data.")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help=f"Recipe with which the original was trained. {RECIPES}")] = None,
    concept: Concept = None,
    concept_part: ConceptPart = None,
    text: TextFile = None,
    compile: Compile = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
    *,
    options: dict[str, Any],
) -> None:
    """Forget classes, by default with pour-a, which needs images of these classes alone (--data).

    --method NAME --help lists the options of a method.
    """
    from pour.training import Run
    from pour.training.tasks.task import find_task, get_task
    from pour.unlearning import make_method, request_of

    check_model_file(out, overwrite=overwrite)
    if bool(forget) == bool(concept):
        raise UsageError("A request needs either --forget (a class) or --concept (words); pass one of them.")
    flags: dict[str, object] = {"--method": method, "--data": data, "--root": root, "--arch": arch}
    flags |= {"--mean": mean, "--std": std, "--num-classes": num_classes, "--recipe": recipe}
    flags |= {"--compile": compile, "--device": device, "--precision": precision}
    flags |= {"--force": force}
    flags |= {"--text": text, "--concept-part": concept_part}
    _refuse_unread_in_unlearning(bool(concept), flags, options)
    request = None
    if concept:
        original = open_own(model, "--concept is for zero-shot classifiers that pour train has written")
        forgotten = forget_by_text(original, concept, text, concept_part)
    else:
        configured = make_method(method or DEFAULT_METHOD, **options)
        _require_data(configured, data, recipe)
        plain = PlainWeights.of(arch, mean, std, model)
        if data is None:
            original = open_model(model, plain, None, num_classes)
            require_clear_head(original, model)
            request = pour.ForgetRequest(classes=forget or [])
        else:
            task = get_task(find_task(data))
            dataset = task.load(data, root)
            original = open_model(model, plain, dataset)
            build = None if plain is None else functools.partial(plain.build, model, dataset)
            request = request_of(
                task, dataset, forget or [], configured, original, recipe=recipe, build=build, seed=seed
            )
        forgotten = pour.unlearn(
            original,
            request,
            method=configured,
            seed=seed,
            device=device,
            precision=precision,  # type: ignore[arg-type]
            progress=not quiet,
            compile=compile,
            force=force,
        )
    # The model is saved first, so that an error in the measurement does not lose it.
    entries = _keep(forgotten, out, overwrite)
    if not quiet:
        record, accuracies = pour.history(forgotten)[-1], None
        if request is None:
            record = dataclasses.replace(record, class_names=tuple(concept or ()))
        else:
            run = Run(seed=seed, device=device, progress=False)
            accuracies = forget_accuracies(original, forgotten, request, run)
        typer.echo(bottom_line(record, accuracies, pixels=request is not None and request.pixelwise))
        show(entries)
    typer.echo(out)


def _require_data(method: Method, data: str | None, recipe: str | None) -> None:
    """Raise UsageError, with the missing flag, if the method needs data or a recipe."""
    if method.needs and data is None:
        kinds = [kind for need, kind in (("forget", "forgotten"), ("retain", "retained")) if need in method.needs]
        what = f"images of the {' and '.join(kinds)} classes" if kinds else "images"
        raise UsageError(f"{method.name} needs {what}; name their dataset with --data.")
    if method.name == "retrain" and recipe is None:
        raise UsageError("retrain needs the recipe of the original; name it with --recipe.")


def _refuse_unread_in_unlearning(by_words: bool, flags: dict[str, object], options: dict[str, Any]) -> None:
    """Refuse the flags, and the options of a method, that forgetting by words or by classes does not read."""
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
    if flags["--arch"] is None:
        refuse_unread({"--num-classes": flags["--num-classes"]}, "without --arch", "add that, or leave it out")


def _keep(forgotten: nn.Module, out: Path, overwrite: bool) -> History:
    """Save a model that has forgotten, and its history as JSON next to it. Return the history."""
    pour.save(forgotten, out, overwrite=overwrite)
    entries = pour.history(forgotten)
    write_text(
        out.with_suffix(".json"), json.dumps({"history": [dataclasses.asdict(entry) for entry in entries]}, indent=1)
    )
    return entries
