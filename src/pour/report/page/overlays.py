"""Pictures of scenes before and after forgetting, for a page and as small files."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import torch

from pour._io import atomic_path
from pour.errors import UsageError
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import on_device, to_unit
from pour.models.unwrap import unwrap
from pour.report.figures.masks import SegmentationData, draw_segmentation
from pour.report.figures.saving import save_figure
from pour.report.page.sections import FigureSection
from pour.report.pictures import Gallery, register_pictures
from pour.training.tasks.task import get_task

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from pour.data.scenes import Scenes
    from pour.report.pictures import Subject
    from pour.training.run import Run

__all__ = ["choose_scenes", "draw_overlays", "overlay_data", "save_overlays", "save_small"]

# The colours of classes become similar in a smaller palette.
_PALETTE = 128
_WIDTH = 900


def choose_scenes(scenes: Scenes, forgotten: Sequence[int], count: int) -> Scenes:
    """Return the scene with the most forgotten pixels of each of ``count`` equal parts of a split.

    Neighbours in a video are similar, so that the best scenes of the whole split would look the same.
    """
    share = np.isin(scenes.masks, list(forgotten)).mean(axis=(1, 2))
    parts = [part for part in np.array_split(np.arange(len(scenes)), count) if len(part)]
    best = [part[share[part].argmax()] for part in parts]
    rows = [row for row in best if share[row] > 0] or [int(share.argmax())]
    return scenes.take(np.array(rows, np.int64))


def overlay_data(subject: Subject, count: int) -> SegmentationData:
    """Run the original and the first unlearned model on ``count`` test scenes. Return the scenes with all masks."""
    name, report = next(iter(subject.reports.items()))
    scenes = choose_scenes(subject.samples, report.data.forgotten, count)
    before, after = (_predictions(subject.models[model], scenes, subject.run) for model in ("original", name))
    return SegmentationData(
        scenes=scenes, before=before, after=after, classes=report.data.classes, forgotten=report.data.forgotten
    )


def _predictions(model: nn.Module, scenes: Scenes, run: Run) -> NDArray[np.int64]:
    """Return the class that ``model`` predicts for each pixel, (n, H, W)."""
    network = unwrap(model)
    with on_device(network, run.torch_device), evaluating(network), torch.inference_mode():
        masks = [
            scores_of(network(to_unit(images))).argmax(dim=1).cpu()
            for images, _ in get_task("segment").batches(scenes, run)
        ]
    predicted: NDArray[np.int64] = torch.cat(masks).numpy()
    return predicted


def draw_overlays(subject: Subject) -> Gallery:
    """Return one figure of three test scenes."""
    data, caption = overlay_data(subject, 3), "The forgotten class is in dark red."
    return Gallery((FigureSection.of("Scenes before and after", draw_segmentation, data, caption=caption),))


def save_overlays(subject: Subject, path: Path) -> None:
    """Write a small picture of two test scenes."""
    save_small(draw_segmentation(overlay_data(subject, 2)), path)


def save_small(figure: Figure, path: Path, *, largest: int = 60_000) -> Path:
    """Write a figure as the widest PNG of at most ``largest`` bytes."""
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


register_pictures("segment", draw_overlays, save_overlays)
