"""pour unlearn, bench and table for segmentation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

import pour
from pour._io import write_text
from pour.cli.terminal import show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.data.formats.scenes import SegmentationDataset
    from pour.unlearning import Method

__all__ = ["request_scenes", "table_scenes"]


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
