"""pour inspect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import pour
from pour.cli.flags import Arch, Device, Mean, Root, Std, refuse_unread
from pour.cli.terminal import PlainWeights, open_model

__all__ = ["inspect"]


def inspect(
    model: Annotated[Path, typer.Argument(help="File of the model.", show_default=False)],
    data: Annotated[
        str | None, typer.Option(help="Dataset for measuring accuracy and collapse, and for verifying the head.")
    ] = None,
    forget: Annotated[
        list[str] | None, typer.Option(help="Class to forget, by name or index; may be given several times.")
    ] = None,
    root: Root = None,
    arch: Arch = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Number of classes, for plain weights without --data.")
    ] = None,
    head: Annotated[str | None, typer.Option(help="Dotted name of the head, if pour cannot find it.")] = None,
    limit: Annotated[int, typer.Option(help="Largest number of images per split.")] = 5000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Device = None,
) -> None:
    """Describe a model: its head, its layers, its accuracy and collapse on data, and the method that suits it."""
    from pour.training.tasks.task import find_task, get_task

    if data is None:
        refuse_unread({"--root": root}, "without --data", "add that, or leave it out")
    else:
        refuse_unread({"--num-classes": num_classes}, "with --data")
    if arch is None:
        refuse_unread({"--num-classes": num_classes}, "without --arch", "add that, or leave it out")
    plain = PlainWeights.of(arch, mean, std, model)
    task = None if data is None else get_task(find_task(data))
    dataset = None if data is None or task is None else task.load(data, root)
    opened = open_model(model, plain, dataset, num_classes)
    inspection = pour.inspect(opened, dataset, forget or None, head=head, task=task, limit=limit, device=device)
    typer.echo(inspection.to_json() if as_json else inspection.to_text())
