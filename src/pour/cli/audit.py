"""pour audit."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pour
from pour._io import refuse_to_overwrite
from pour.cli.flags import (
    Arch,
    Data,
    Device,
    Force,
    Mean,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    Set,
    Std,
    parse_settings,
    refuse_unread,
)
from pour.cli.terminal import PlainWeights, open_model, show
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.auditing.report import AuditReport

__all__ = ["audit"]


def audit(
    original: Annotated[Path, typer.Argument(help="File of the original model.", show_default=False)],
    unlearned: Annotated[Path, typer.Argument(help="File of the unlearned model.", show_default=False)],
    forget: Annotated[
        list[str] | None,
        typer.Option(
            help="A forgotten class, by name or index; may be given several times.",
            show_default="the classes in the history",
        ),
    ] = None,
    data: Data = "digits",
    root: Root = None,
    retrained: Annotated[
        list[Path] | None,
        typer.Option(help="Model trained without the classes, the reference of verdicts; twice for two seeds."),
    ] = None,
    arch: Arch = None,
    mean: Mean = None,
    std: Std = None,
    limit: Annotated[
        int | None, typer.Option(help="Largest number of forgotten and of retained training images.")
    ] = None,
    relearn: Annotated[bool, typer.Option("--relearn", help="Also run the relearn attack, which trains.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Also compare the models layer by layer.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder in which features are stored for later audits.")] = None,
    settings: Set = None,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the report as a web page to this file, *.html, and as JSON next to it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Overwrite = False,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Measure how much of the forgotten classes an unlearned model still contains; --report writes a page."""
    from pour.auditing import is_first_process
    from pour.training.tasks.task import find_task, get_task

    references = retrained or []
    files = [original, unlearned, *references]
    _check_targets(out, report, files, overwrite=overwrite)
    if cache is not None and cache.exists() and not cache.is_dir():
        raise UsageError(f"--cache {cache} is a file; pass a folder.")
    plain = PlainWeights.of(arch, mean, std, *files)
    task = get_task(find_task(data), **parse_settings(settings))
    if not task.one_label:
        unread = {"--relearn": relearn, "--layers": layers, "--limit": limit}
        refuse_unread(unread, f"for the task {task.name}")
    dataset = task.load(data, root)
    before, after, *opened = (open_model(path, plain, dataset) for path in files)
    result = pour.audit(
        original=before,
        unlearned=after,
        retrained=opened,
        data=dataset,
        classes=forget,
        task=task,
        limit=limit,
        relearn=relearn,
        layers=layers,
        cache=cache,
        cache_unlearned=cache is not None,
        pictures=report is not None,
        force=force,
        seed=seed,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    if not is_first_process():
        return
    if report is not None:
        result.save(report.with_suffix(".json"))
        pour.write_report(result, report, command=shlex.join(["pour", *sys.argv[1:]]))
    _print_result(result, out, report, as_json=as_json, quiet=quiet)


def _check_targets(out: Path | None, report: Path | None, models: Sequence[Path], *, overwrite: bool) -> None:
    """Raise UsageError before any work if a file exists, cannot be written or belongs to an audited model."""
    # A JSON file next to a model describes its training.
    audited = {path.resolve() for model in models for path in (model, model.with_suffix(".json"))}
    page = [] if report is None else [report, report.with_suffix(".json")]
    targets = [*([] if out is None else [out]), *page]
    if not targets:
        refuse_unread({"--overwrite": overwrite}, "without --out or --report")
    if report is not None and report in (out, page[1]):
        raise UsageError(f"{report} cannot be both the page and the JSON; choose a name *.html for --report.")
    for target in targets:
        if target.resolve() in audited:
            raise UsageError(f"{target} is a file of an audited model; choose another name for the report.")
        refuse_to_overwrite(target, overwrite=overwrite)


def _print_result(result: AuditReport, out: Path | None, report: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Save the report to `out`, print it, and print the paths of its files."""
    if out is not None:
        result.save(out)
    if as_json:
        typer.echo(result.to_json())
    else:
        show(result, quiet=quiet)
    for path in (out, report):
        if path is not None:
            typer.echo(path, err=as_json)
