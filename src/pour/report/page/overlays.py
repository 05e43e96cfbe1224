"""Scenes before and after forgetting, as a figure on a page and as a small picture."""

from __future__ import annotations

import io
from functools import partial
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
from pour.training.tasks.segment import scene_batches

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import nn

    from pour.data.scenes import Scenes
    from pour.report.figures.masks import SegmentationData
    from pour.report.figures.style import Theme
    from pour.training.run import Run

__all__ = ["choose_scenes", "overlay_data", "overlay_section", "predict_masks", "save_small"]

# With fewer colours the classes' own run into each other; then a smaller picture is the better one.
_PALETTES = (192, 128, 96, 72)
_WIDTH = 900


def choose_scenes(scenes: Scenes, forgotten: Sequence[int], count: int = 3) -> Scenes:
    """The scene with the most pixels of ``forgotten`` from each of ``count`` equal stretches of the split.

    A split of a video has its neighbours look alike, so the overall best would be one scene several times.
    """
    share = np.isin(scenes.masks, list(forgotten)).mean(axis=(1, 2))
    stretches = [part for part in np.array_split(np.arange(len(scenes)), count) if len(part)]
    best = [part[share[part].argmax()] for part in stretches]
    shown = [row for row in best if share[row] > 0] or [int(share.argmax())]
    return scenes.take(np.array(shown, np.int64))


def predict_masks(model: nn.Module, scenes: Scenes, run: Run) -> list[NDArray[np.int64]]:
    """The class that ``model`` gives to every pixel, an (H, W) array to a scene."""
    network = unwrap(model)
    masks: list[NDArray[np.int64]] = []
    with on_device(network, run.torch_device), evaluating(network), torch.inference_mode():
        for images, _ in scene_batches(scenes, run):
            masks += list(scores_of(network(to_unit(images))).argmax(dim=1).cpu().numpy())
    return masks


def overlay_data(
    original: nn.Module,
    unlearned: nn.Module,
    scenes: Scenes,
    run: Run,
    *,
    classes: Sequence[str],
    forgotten: Sequence[int],
) -> SegmentationData:
    """Images, truth, and what the two models say of them."""
    return segmentation_data(
        list(scenes.images),
        [mask.astype(np.int64) for mask in scenes.masks],
        predict_masks(original, scenes, run),
        predict_masks(unlearned, scenes, run),
        classes=classes,
        forgotten=forgotten,
        void=IGNORED,
    )


def overlay_section(data: SegmentationData) -> FigureSection:
    """The figure for a page."""

    def draw(theme: Theme) -> Figure:
        return draw_segmentation(data, theme=theme)

    return FigureSection.of("Scenes before and after", partial(draw), caption="The forgotten class is in dark red.")


def save_small(figure: Figure, path: Path, *, largest: int = 60_000) -> Path:
    """Write a figure as a PNG of at most ``largest`` bytes, as large and colourful as that allows."""
    try:
        from PIL import Image
    except ImportError as error:
        raise UsageError('Small pictures need Pillow: pip install "pour-unlearning[report]".') from error
    save_figure(figure, path)
    with Image.open(path) as opened:
        picture = opened.convert("RGB")
    data = b""
    scale = min(1.0, _WIDTH / picture.width)
    while scale > 0.2:
        size = (round(picture.width * scale), round(picture.height * scale))
        shown = picture.resize(size, Image.Resampling.LANCZOS)
        for colours in _PALETTES:
            buffer = io.BytesIO()
            shown.quantize(colours, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
            data = buffer.getvalue()
            if len(data) <= largest:
                with atomic_path(path) as temporary:
                    temporary.write_bytes(data)
                return path
        scale *= 0.9
    raise UsageError(f"{path} cannot be made smaller than {len(data)} bytes; allow more than {largest}.")
