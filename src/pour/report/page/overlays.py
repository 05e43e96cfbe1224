"""Pictures of scenes before and after forgetting, for a page and as small files."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING

import numpy as np
import torch

from pour._io import atomic_path
from pour.data.scenes import IGNORED
from pour.errors import UsageError
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import on_device, to_unit
from pour.models.unwrap import unwrap
from pour.report.figures.masks import draw_segmentation, segmentation_data
from pour.report.figures.saving import save_figure
from pour.report.page.sections import FigureSection
from pour.report.pictures import Gallery, register_pictures
from pour.training.tasks.segment import scene_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from pour.data.scenes import Scenes
    from pour.report.figures.masks import SegmentationData
    from pour.report.pictures import Subject
    from pour.training.run import Run

__all__ = ["choose_scenes", "draw_overlays", "overlay_data", "save_overlays", "save_small"]

# The colours of classes become similar in smaller palettes; a smaller picture is better than those.
_PALETTES = (192, 128, 96, 72)
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


def overlay_data(
    original: nn.Module,
    unlearned: nn.Module,
    scenes: Scenes,
    run: Run,
    *,
    classes: Sequence[str],
    forgotten: Sequence[int],
) -> SegmentationData:
    """Run two models on scenes. Return the images with their true and predicted masks."""
    return segmentation_data(
        list(scenes.images),
        list(scenes.masks),
        _predictions(original, scenes, run),
        _predictions(unlearned, scenes, run),
        classes=classes,
        forgotten=forgotten,
        void=IGNORED,
    )


def _predictions(model: nn.Module, scenes: Scenes, run: Run) -> list[NDArray[np.int64]]:
    """Return the class that ``model`` predicts for each pixel, one (H, W) array per scene."""
    network = unwrap(model)
    masks: list[NDArray[np.int64]] = []
    with on_device(network, run.torch_device), evaluating(network), torch.inference_mode():
        for images, _ in scene_batches(scenes, run):
            masks += list(scores_of(network(to_unit(images))).argmax(dim=1).cpu().numpy())
    return masks


def draw_overlays(subject: Subject) -> Gallery:
    """Return one figure of three test scenes with the masks of the original and the first unlearned model."""
    name, report = next(iter(subject.reports.items()))
    forgotten = report.data.forgotten
    scenes = choose_scenes(subject.samples, forgotten, 3)
    models = subject.models["original"], subject.models[name]
    data = overlay_data(*models, scenes, subject.run, classes=report.data.classes, forgotten=forgotten)
    caption = "The forgotten class is in dark red."
    return Gallery((FigureSection.of("Scenes before and after", draw_segmentation, data, caption=caption),))


def save_overlays(
    original: nn.Module,
    unlearned: nn.Module,
    scenes: Scenes,
    classes: Sequence[str],
    forgotten: Sequence[int],
    run: Run,
    path: Path,
) -> None:
    """Write a small picture of two scenes with the masks of both models."""
    drawn = choose_scenes(scenes, forgotten, 2)
    data = overlay_data(original, unlearned, drawn, run, classes=classes, forgotten=forgotten)
    save_small(draw_segmentation(data), path)


def save_small(figure: Figure, path: Path, *, largest: int = 60_000) -> Path:
    """Write a figure as a PNG of at most ``largest`` bytes: the largest picture and palette that fit."""
    from PIL import Image

    save_figure(figure, path)
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    scale = min(1.0, _WIDTH / picture.width)
    scales = itertools.takewhile(lambda scale: scale > 0.2, (scale * 0.9**i for i in itertools.count()))
    for scale, colors in itertools.product(list(scales), _PALETTES):
        size = (round(picture.width * scale), round(picture.height * scale))
        buffer = io.BytesIO()
        small = picture.resize(size, Image.Resampling.LANCZOS).quantize(colors, dither=Image.Dither.NONE)
        small.save(buffer, "PNG", optimize=True)
        if buffer.tell() <= largest:
            with atomic_path(path) as temporary:
                temporary.write_bytes(buffer.getvalue())
            return path
    raise UsageError(f"{path} cannot be made smaller than {buffer.tell()} bytes; allow more than {largest}.")


register_pictures("segment", draw_overlays, save_overlays)
