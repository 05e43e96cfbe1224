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
    Data,
    Device,
    Forget,
    Mean,
    Overwrite,
    PrecisionFlag,
    Quiet,
    Root,
    Seed,
    Std,
    refuse_unread,
)
from pour.cli.scenes import audit_scenes
from pour.cli.terminal import PlainWeights, open_model, show
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.data.splits import Splits

__all__ = ["audit"]


def audit(
    original: Annotated[Path, typer.Argument(help="The file of the original model.", show_default=False)],
    unlearned: Annotated[Path, typer.Argument(help="The file of the unlearned model.", show_default=False)],
    forget: Forget,
    data: Data = "digits",
    root: Root = None,
    retrained: Annotated[
        list[Path] | None,
        typer.Option(help="Model trained without the class, the reference of every verdict; twice for two seeds."),
    ] = None,
    arch: Annotated[str | None, typer.Option(help="The architecture, for files of plain weights.")] = None,
    mean: Mean = None,
    std: Std = None,
    limit: Annotated[int | None, typer.Option(help="At most this many training images on each side.")] = None,
    relearn: Annotated[bool, typer.Option("--relearn", help="Also run the relearn attack, which trains.")] = False,
    layers: Annotated[bool, typer.Option("--layers", help="Also compare the models layer by layer.")] = False,
    cache: Annotated[Path | None, typer.Option(help="A folder that keeps features for the next audit.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report as JSON to this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write the report as a web page to this file, *.html, and JSON beside it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    seed: Seed = 0,
    device: Device = None,
    precision: PrecisionFlag = None,
    overwrite: Overwrite = False,
    quiet: Quiet = False,
) -> None:
    """What an unlearned model still knows; --report writes a page."""
    from pour.auditing import is_first_process
    from pour.data.registry import is_segmentation
    from pour.data.splits import Splits

    references = retrained or []
    files = [original, unlearned, *references]
    _check_targets(out, report, files, overwrite=overwrite)
    if cache is not None and cache.exists() and not cache.is_dir():
        raise UsageError(f"--cache {cache} is a file; give a folder.")
    scenes = is_segmentation(data)
    if scenes:
        unread = {"--retrained": len(references) > 1, "--relearn": relearn, "--layers": layers, "--cache": cache}
        refuse_unread(unread, "on segmentation data")
    plain = PlainWeights.of(arch, mean, std, *files)
    if scenes:
        result = audit_scenes(
            {"original": original, "unlearned": unlearned, "retrained": next(iter(references), None)},
            data,
            root,
            forget,
            plain=plain,
            limit=limit,
            seed=seed,
            device=device,
            precision=precision,
            report=report,
            quiet=quiet,
        )
        _tell(result, out, report, as_json=as_json, quiet=quiet)
        return
    dataset = pour.load_dataset(data, root)
    splits = Splits.of(dataset, forget)
    before, after = open_model(original, plain, dataset), open_model(unlearned, plain, dataset)
    opened = [open_model(path, plain, dataset) for path in references]
    result = pour.audit(
        original=before,
        unlearned=after,
        retrained=opened,
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
    if report is not None:
        result.save(report.with_suffix(".json"))
        models = {"original": before, "unlearned": after, "retrained": next(iter(opened), None)}
        _write_page(result, report, models, splits, files, seed=seed, device=device)
    _tell(result, out, report, as_json=as_json, quiet=quiet)


def _check_targets(out: Path | None, report: Path | None, models: Sequence[Path], *, overwrite: bool) -> None:
    """Refuse files that are there, that cannot be written or that are the audited ones, before any work."""
    # Beside a model stands what it was made of.
    audited = {path.resolve() for model in models for path in (model, model.with_suffix(".json"))}
    beside = [] if report is None else [report, report.with_suffix(".json")]
    for target in [*([] if out is None else [out]), *beside]:
        if target.resolve() in audited:
            raise UsageError(f"{target} is a file of an audited model; give the report another name.")
    if out is None and report is None:
        refuse_unread({"--overwrite": overwrite}, "without --out or --report")
    if out is not None:
        refuse_to_overwrite(out, overwrite=overwrite)
    if report is None:
        return
    refuse_to_overwrite(report, overwrite=overwrite)
    if report in (out, report.with_suffix(".json")):
        raise UsageError(f"{report} cannot be both the page and the JSON; call the page of --report *.html.")
    refuse_to_overwrite(report.with_suffix(".json"), overwrite=overwrite)


def _tell(result: AuditReport, out: Path | None, report: Path | None, *, as_json: bool, quiet: bool) -> None:
    """Save the report where that was asked for, print it, and say where it is."""
    if out is not None:
        result.save(out)
    if as_json:
        typer.echo(result.to_json())
    else:
        show(result, quiet=quiet)
    for path in (out, report):
        if path is not None:
            typer.echo(path, err=as_json)


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
    from pour.report.pictures import Subject, draw_gallery
    from pour.training import Run

    present = {role: model for role, model in models.items() if model is not None}
    run = Run(seed=seed, device=device, progress=False)
    subject = Subject(models=present, reports={"unlearned": result}, samples=splits.test.whole, run=run)
    gallery = draw_gallery("classify", subject)
    pour.write_report(
        result,
        path,
        history=pour.history(present["unlearned"]),
        figures=gallery.figures,
        embedding=gallery.embedding,
        command=shlex.join(["pour", *sys.argv[1:]]),
        files=files,
    )
