"""Pictures of scenes before and after forgetting, for a page and as small files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour._io import atomic_path
from pour.auditing.pictures import pack, unpack
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import on_device, to_unit
from pour.models.unwrap import unwrap
from pour.report.figures.masks import SegmentationData, draw_segmentation, drawn_step
from pour.report.figures.saving import save_figure
from pour.report.page.sections import FigureSection
from pour.report.pictures import register_pictures
from pour.training.tasks.task import get_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from pour.auditing.pictures import Subject
    from pour.auditing.report import AuditReport
    from pour.training.run import Run

__all__ = ["choose_scenes", "compute_overlays", "draw_overlays", "save_overlays", "save_small"]

# The colours of classes become similar in a smaller palette.
_PALETTE = 128
_WIDTH = 900
_SCENES = 3
_SCENES_OF_A_SMALL_PICTURE = 2


def choose_scenes(scenes: Scenes, forgotten: Sequence[int], count: int) -> Scenes:
    """Return the scene with the most forgotten pixels of each of `count` equal parts of a split.

    Neighbours in a video are similar, so that the best scenes of the whole split would look the same.
    """
    share = np.isin(scenes.masks, list(forgotten)).mean(axis=(1, 2))
    parts = [part for part in np.array_split(np.arange(len(scenes)), count) if len(part)]
    best = [part[share[part].argmax()] for part in parts]
    rows = [row for row in best if share[row] > 0] or [int(share.argmax())]
    return scenes.take(np.array(rows, np.int64))


def compute_overlays(subject: Subject) -> dict[str, Any]:
    """Run the original and the unlearned model on three test scenes. Return the scenes with all masks.

    The images have the size at which they are drawn, and the masks all pixels, because the figure counts them.
    """
    scenes = choose_scenes(subject.samples, subject.report.data.forgotten, _SCENES)
    before, after = (_predictions(subject.models[model], scenes, subject.run) for model in ("original", subject.name))
    step = drawn_step(scenes.masks)
    return {
        "images": pack(scenes.images[:, ::step, ::step]),
        "truth": pack(scenes.masks),
        "before": pack(before.astype(np.uint8)),
        "after": pack(after.astype(np.uint8)),
    }


def _overlay_data(report: AuditReport, most: int) -> SegmentationData:
    assert report.pictures is not None
    images, truth, before, after = (
        unpack(report.pictures.data[name])[:most] for name in ("images", "truth", "before", "after")
    )
    step = drawn_step(truth)
    full = images.repeat(step, axis=1).repeat(step, axis=2)[:, : truth.shape[1], : truth.shape[2]]
    return SegmentationData(
        scenes=Scenes(full, truth, num_classes=len(report.data.classes)),
        before=before,
        after=after,
        classes=report.data.classes,
        forgotten=report.data.forgotten,
    )


def _predictions(model: nn.Module, scenes: Scenes, run: Run) -> NDArray[np.int64]:
    """Return the class that `model` predicts for each pixel, (n, H, W)."""
    network = unwrap(model)
    with on_device(network, run.torch_device), evaluating(network), torch.inference_mode():
        masks = [
            scores_of(network(to_unit(images))).argmax(dim=1).cpu()
            for images, _ in get_task("segment").batches(scenes, run)
        ]
    predicted: NDArray[np.int64] = torch.cat(masks).numpy()
    return predicted


def draw_overlays(report: AuditReport) -> list[FigureSection]:
    """Return one figure of the kept scenes."""
    data, caption = _overlay_data(report, _SCENES), "The forgotten class is in dark red."
    return [FigureSection.of("Scenes before and after", draw_segmentation, data, caption=caption)]


def save_overlays(report: AuditReport, path: Path) -> None:
    """Write a small picture of two of the kept scenes."""
    save_small(draw_segmentation(_overlay_data(report, _SCENES_OF_A_SMALL_PICTURE)), path)


def save_small(figure: Figure, path: Path, *, largest: int = 60_000) -> Path:
    """Write a figure as the widest PNG of at most `largest` bytes."""
    from PIL import Image

    save_figure(figure, path)
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    for width in range(min(_WIDTH, picture.width), _WIDTH // 5, -20):
        small = picture.resize((width, round(width * picture.height / picture.width)), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        small.quantize(_PALETTE, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= largest:
            with atomic_path(path) as temporary:
                temporary.write_bytes(buffer.getvalue())
            return path
    raise UsageError(f"{path} cannot be made smaller than {buffer.tell()} bytes; allow more than {largest}.")


register_pictures("segment", compute_overlays, draw_overlays, save_overlays)
