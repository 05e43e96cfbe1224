"""The command line: parse, call, print."""

from __future__ import annotations

import dataclasses
import json
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import pour
from pour._files import refuse_to_overwrite, write_text
from pour._options import DEFAULT_METHOD, chosen_method, with_method_options
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType
    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.data.dataset import ImageDataset
    from pour.data.splits import Splits

__all__ = ["app", "main"]

_PIPE_WIDTH = 160

app = typer.Typer(
    name="pour",
    help="Make a trained vision model forget classes, and prove how well it did. Start with: pour demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Out = Annotated[Path, typer.Option(help="The file to write.", show_default=False)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")]
Data = Annotated[str, typer.Option(help="A dataset: a name from pour datasets, folder:PATH or FILE.npz.")]
Root = Annotated[Path | None, typer.Option(help="The data folder; by default POUR_DATA or ~/.cache/pour.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda or cuda:0; by default the GPU where there is one.")]
Seed = Annotated[int, typer.Option(help="Fixes everything random.")]
PrecisionFlag = Annotated[
    str | None, typer.Option("--precision", help="fp32 or bf16; by default bf16 on a GPU that has it.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar, no table.")]
Forget = Annotated[
    list[str], typer.Option(help="A class to forget, by name or index; may be given several times.", show_default=False)
]


def main() -> None:
    """Run the command line: exit 0 when done, 2 on wrong use, 1 when the work failed."""
    warnings.showwarning = _show_warning
    try:
        _add_unlearn(sys.argv[1:])
        app()
    except UsageError as error:
        _complain(str(error))
        sys.exit(2)
    except PourError as error:
        _complain(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        _complain("Interrupted.")
        sys.exit(130)


def _add_unlearn(arguments: list[str]) -> None:
    """Add the command whose flags are only known once the method's name is."""
    method = None
    if "unlearn" in arguments:
        from pour.methods import get_method

        method = get_method(chosen_method(arguments))
    app.command()(with_method_options(unlearn, method))


def _complain(sentence: str) -> None:
    print(f"pour: {sentence}", file=sys.stderr)


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"pour: warning: {message}", file=sys.stderr)


def _version(value: bool) -> None:
    if value:
        typer.echo(pour.__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder for what the demo writes.")] = Path("runs/demo"),
    forget: Annotated[str, typer.Option(help="The digit to forget.")] = "3",
    seed: Seed = 0,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    quiet: Quiet = False,
) -> None:
    """The whole story on scikit-learn's digits, in under a minute: models, audits and a report."""
    from pour.bench.demo import run_demo

    page = run_demo(out, forget=forget, seed=seed, progress=not quiet, console=Console(quiet=quiet))
    if show:
        typer.launch(page.resolve().as_uri())


@app.command()
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
    """Train a classifier; with --without, the retrained reference. A killed run goes on when started again."""
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
    _print(table, quiet=quiet)
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
    """Forget classes with any method; --method NAME --help lists that method's own options."""
    from pour.data.splits import Splits
    from pour.methods import make_method, request_of

    refuse_to_overwrite(out, overwrite=overwrite)
    chosen = make_method(method, **options)
    dataset = None if data is None else pour.load_dataset(data, root)
    original = _open(model, arch, dataset, num_classes)
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


@app.command()
def audit(
    original: Annotated[Path, typer.Argument(help="The file of the original model.", show_default=False)],
    unlearned: Annotated[Path, typer.Argument(help="The file of the unlearned model.", show_default=False)],
    forget: Forget,
    data: Data = "digits",
    root: Root = None,
    retrained: Annotated[
        Path | None, typer.Option(help="A model trained without the class: the reference of every verdict.")
    ] = None,
    retrained_second: Annotated[
        Path | None, typer.Option(help="Another seed of it: the ceiling of similarities, the floor of distances.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="The architecture, for files of plain weights.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many training images on each side.")] = None,
    relearn: Annotated[bool, typer.Option("--relearn", help="Also run the relearn attack, which trains.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Also compare the models layer by layer.")] = False,
    cache: Annotated[Path | None, typer.Option(help="A folder that keeps features for the next audit.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report as a web page to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    quiet: Quiet = False,
) -> None:
    """Measure what an unlearned model still knows, read against a retrained one."""
    from pour.auditing import is_first_process
    from pour.data.splits import Splits

    dataset = pour.load_dataset(data, root)
    splits = Splits.of(dataset, forget)
    before, after = _open(original, arch, dataset), _open(unlearned, arch, dataset)
    reference = None if retrained is None else _open(retrained, arch, dataset)
    result = pour.audit(
        original=before,
        unlearned=after,
        retrained=reference,
        retrained_second=None if retrained_second is None else _open(retrained_second, arch, dataset),
        data=splits,
        limit=limit,
        relearn=relearn,
        layers=layers,
        cache=cache,
        cache_unlearned=cache is not None,
        seed=seed,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    if not is_first_process():
        return
    if out is not None:
        result.save(out)
    if report is not None:
        result.save(report.with_suffix(".json"))
        models = {"original": before, "unlearned": after, "retrained": reference}
        files = [path for path in (original, unlearned, retrained, retrained_second) if path is not None]
        _write_page(result, report, models, splits, files, seed=seed, device=device)
    if as_json:
        typer.echo(result.to_json())
    else:
        _print(result, quiet=quiet)
    for path in (out, report):
        if path is not None:
            typer.echo(path, err=as_json)


@app.command()
def history(
    file: Annotated[Path, typer.Argument(help="A file from pour.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a model has forgotten, how, and the digests of its weights before and after."""
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


@app.command()
def methods() -> None:
    """The unlearning methods: what data each needs, what it costs, where it comes from."""
    table = Table("method", "needs", "cost", "paper", "what it does")
    for info in pour.list_methods():
        table.add_row(info.name, ", ".join(info.needs) or "nothing", info.cost, info.paper, info.summary)
    _print(table)


@app.command()
def datasets(root: Root = None) -> None:
    """The datasets, and which are present under the data folder."""
    from pour.data.registry import data_root

    table = Table("dataset", "task", "present", "licence", "what", title=f"under {data_root(root)}")
    for status in pour.list_datasets(root):
        info = status.info
        table.add_row(info.name, info.task, "yes" if status.present else "no", info.licence, info.title)
    _print(table)


@app.command()
def models() -> None:
    """The architectures that --arch knows."""
    table = Table("arch", "what", "needs")
    for info in pour.list_models():
        table.add_row(info.name, info.summary, "" if info.available else f'pip install "pour-unlearning[{info.extra}]"')
    _print(table)


def _open(path: Path, arch: str | None, dataset: ImageDataset | None, num_classes: int | None = None) -> nn.Module:
    """A model from a file of pour, or from plain weights and an architecture."""
    if arch is None:
        return pour.load(path)
    if dataset is not None:
        height, _, channels = dataset.image_shape
        skeleton = pour.build_model(arch, dataset.num_classes, in_channels=channels, image_size=height)
        loaded = pour.load(path, skeleton)
        from pour.models import set_class_names

        set_class_names(loaded, dataset.classes)
        return loaded
    if num_classes is None:
        raise UsageError("Plain weights need the number of classes; pass --data or --num-classes.")
    return pour.load(path, pour.build_model(arch, num_classes))


def _write_page(
    result: AuditReport,
    path: Path,
    models: Mapping[str, nn.Module | None],
    splits: Splits,
    files: list[Path],
    *,
    seed: int,
    device: str | None,
) -> None:
    from pour.report.gallery import hang
    from pour.training import Run

    present = {role: model for role, model in models.items() if model is not None}
    gallery = hang(present, {"unlearned": result}, splits, Run(seed=seed, device=device, progress=False))
    pour.write_report(
        result,
        path,
        history=pour.history(present["unlearned"]),
        figures=gallery.figures,
        embedding=gallery.embedding,
        command=shlex.join(["pour", *sys.argv[1:]]),
        files=files,
    )


def _print(content: RenderableType, *, quiet: bool = False) -> None:
    if not quiet:
        # A pipe has no width of its own; tables need more than the 80 columns that it would be given.
        Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH).print(content)


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
    _print(table)
