"""pour export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import pour
from pour.cli.flags import Arch, Mean, Overwrite, Root, Std, refuse_unread
from pour.cli.terminal import PlainWeights, open_model
from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["export"]

_COMPARED = 8


def export(
    model: Annotated[Path, typer.Argument(help="File of the model, usually an unlearned model.", show_default=False)],
    out: Annotated[
        Path,
        typer.Option(
            help="FILE.safetensors, .pt or .pth (keys of the network), FILE.onnx, or a folder for transformers.",
            show_default=False,
        ),
    ],
    data: Annotated[
        str | None, typer.Option(help="Dataset whose images are compared; by default random images.")
    ] = None,
    root: Root = None,
    normalization: Annotated[
        str | None,
        typer.Option(
            help="For ONNX: the file normalises its images (inside) or takes normalised images (outside).",
            show_default="inside",
        ),
    ] = None,
    arch: Arch = None,
    mean: Mean = None,
    std: Std = None,
    num_classes: Annotated[
        int | None, typer.Option(help="Number of classes, for plain weights without --data.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a model for code without pour, and compare it in a process without pour."""
    from pour.models.exporting.export import recorded_shape
    from pour.training.tasks.task import find_task, get_task

    if data is None:
        refuse_unread({"--root": root}, "without --data", "add that, or leave it out")
    else:
        refuse_unread({"--num-classes": num_classes}, "with --data")
    dataset = None if data is None else get_task(find_task(data)).load(data, root)
    opened = open_model(model, PlainWeights.of(arch, mean, std, model), dataset, num_classes)
    if dataset is None and recorded_shape(opened) is None:
        raise UsageError(f"{model} does not record the size of its images; name a dataset with --data.")
    example = None if dataset is None else _images(dataset)
    done = pour.export(opened, out, example=example, normalization=normalization, overwrite=overwrite)  # type: ignore[arg-type]
    typer.echo(done.images)
    typer.echo(done.check)
    typer.echo(done.path)


def _images(dataset: Any) -> Tensor:
    """Return the first test images of a dataset, in [0, 1]."""
    import numpy as np
    import torch

    from pour.models import to_unit

    part = dataset.splits["test"]
    is_scenes = hasattr(part, "read")
    images = part.read(0)[0][None] if is_scenes else part.take(np.arange(min(_COMPARED, len(part)))).images
    return to_unit(torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2))
