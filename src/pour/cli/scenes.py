"""pour unlearn, audit, bench and table for segmentation."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

import pour
from pour._io import write_text
from pour.cli.terminal import open_own, show, tell_outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from pour.auditing.report import AuditReport
    from pour.cli.terminal import PlainWeights
    from pour.data.formats.scenes import SegmentationDataset
    from pour.unlearning import Method

__all__ = ["audit_scenes", "bench_scenes", "request_scenes", "table_scenes"]


def request_scenes(
    data: str, root: Path | None, forget: Sequence[str], method: Method
) -> tuple[SegmentationDataset, pour.ForgetRequest]:
    """The request to forget classes of a segmentation dataset; its images are read only where the method needs them."""
    from pour.data import Scenes, load_segmentation

    dataset = load_segmentation(data, root)
    classes = dataset.indices(forget)
    if not method.needs:
        return dataset, pour.ForgetRequest(classes=list(classes))
    return dataset, pour.ForgetRequest.of_scenes(Scenes.of(dataset.splits["train"]), classes)


def open_segmenter(path: Path, plain: PlainWeights | None, dataset: SegmentationDataset) -> nn.Module:
    """A segmentation network from a file of pour, or from plain weights and an architecture."""
    if plain is None:
        return open_own(path, "name it with --arch")
    from pour.models import set_class_names

    loaded = pour.load(path, plain.build(dataset.num_classes))
    set_class_names(loaded, dataset.classes)
    return loaded


def audit_scenes(
    files: dict[str, Path | None],
    data: str,
    root: Path | None,
    forget: Sequence[str],
    *,
    plain: PlainWeights | None,
    limit: int | None,
    seed: int,
    device: str | None,
    precision: str | None,
    report: Path | None,
    quiet: bool,
) -> AuditReport:
    """Audit segmentation networks; with ``report``, write the page with overlays."""
    from pour.auditing import audit_segmentation
    from pour.data import Scenes, load_segmentation

    dataset = load_segmentation(data, root)
    scenes = Scenes.of(dataset.splits["test"], limit=limit)
    models = {role: open_segmenter(path, plain, dataset) for role, path in files.items() if path is not None}
    result = audit_segmentation(
        **models,  # type: ignore[arg-type]
        data=dataset,
        classes=list(forget),
        scenes=scenes,
        limit=limit,
        seed=seed,
        device=device,
        precision=precision,  # type: ignore[arg-type]
        progress=not quiet,
    )
    if report is not None:
        from pour.report.pictures import Subject, draw_gallery
        from pour.training import Run

        result.save(report.with_suffix(".json"))
        run = Run(seed=seed, device=device, progress=False)
        gallery = draw_gallery(
            "segment", Subject(models=models, reports={"unlearned": result}, samples=scenes, run=run)
        )
        pour.write_report(
            result,
            report,
            history=pour.history(models["unlearned"]),
            figures=gallery.figures,
            command=shlex.join(["pour", *sys.argv[1:]]),
            files=[path for path in files.values() if path is not None],
        )
    return result


def bench_scenes(experiment: str, out: Path | None, *, quiet: bool, **options: Any) -> None:
    """Run the segmentation experiment and print its table."""
    from pour.bench.segmentation import run_scenes
    from pour.bench.segmentation_table import scene_lines, scene_table

    outcome = run_scenes(experiment, out or Path("runs") / experiment, progress=not quiet, **options)
    tell_outcome(outcome, outcome.out)
    show(scene_table(scene_lines(outcome.out), title=experiment), quiet=quiet)


def table_scenes(folder: Path, format: str, against: Literal["paper"] | None, out: Path | None) -> None:
    """Print or write the table of a segmentation store."""
    from pour.bench.segmentation_table import render_scenes, scene_lines, scene_table

    lines = scene_lines(folder, against=against)
    if format == "rich" and out is None:
        show(scene_table(lines))
    elif out is None:
        typer.echo(render_scenes(lines, format), nl=False)  # type: ignore[arg-type]
    else:
        write_text(out, render_scenes(lines, format))  # type: ignore[arg-type]
        typer.echo(out)
