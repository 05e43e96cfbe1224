"""Segmentation before and after forgetting: masks on top of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from pour.data.scenes import IGNORED, Scenes
from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ClassNames, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

__all__ = ["SegmentationData", "draw_segmentation", "drawn_step"]

_ROWS = 6
_LEGEND = 14
_SIDE = 320


@dataclass(frozen=True, kw_only=True)
class SegmentationData(ClassNames):
    """Scenes with the masks that the original and the unlearned model predict."""

    scenes: Scenes
    before: NDArray[np.integer]
    """Classes that the original model predicts, (n, H, W)."""
    after: NDArray[np.integer]
    """Classes that the unlearned model predicts, (n, H, W)."""

    def __post_init__(self) -> None:
        for name, masks in {"before": self.before, "after": self.after}.items():
            if masks.shape != self.scenes.masks.shape:
                raise UsageError(f"The {name} masks are {masks.shape}, the true masks {self.scenes.masks.shape}.")

    def forgotten_share(self, masks: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the share of each scene's pixels, without ignored ones, that a mask gives to forgotten classes."""
        counted = self.scenes.masks != IGNORED
        pixels = np.isin(masks, self.forgotten) & counted
        shares: NDArray[np.float64] = pixels.sum(axis=(1, 2)) / np.maximum(counted.sum(axis=(1, 2)), 1)
        return shares


def draw_segmentation(data: SegmentationData, *, theme: Theme = "light") -> Figure:
    """Draw one row per scene: image, truth, before and after, with the forgotten classes in dark red."""
    total, height, width = data.scenes.masks.shape
    count = min(total, _ROWS)
    notes = [f"{count} of {total:,} images."] if count < total else []
    step = drawn_step(data.scenes.masks)
    with drawing(theme) as style:
        row_height = min(height / width, 1.5) * (FULL_WIDTH - 0.2) / 4 + 0.16
        figure = style.figure(FULL_WIDTH, row_height * count + 0.75, gap=0.02)
        grid = figure.subplots(count, 4, squeeze=False)
        colors = style.class_colors(len(data.classes), data.forgotten)
        present: set[int] = set()
        masks_of = {"image": None, "truth": data.scenes.masks, "before": data.before, "after": data.after}
        for (title, masks), column in zip(masks_of.items(), grid.T, strict=True):
            column[0].set_title(title)
            for i, axes in enumerate(column):
                pixels = data.scenes.images[i, ::step, ::step] / 255
                if masks is not None:
                    mask = masks[i, ::step, ::step]
                    present |= set(np.unique(mask).tolist())
                    pixels = _overlay(pixels, mask, [*colors, style.muted], data)
                    text = f"forgotten: {100 * data.forgotten_share(masks)[i]:.1f} %"
                    axes.set_xlabel(text, fontsize=6.5, color=style.forgotten, labelpad=2)
                axes.imshow((255 * pixels).round().astype(np.uint8), interpolation="none")
                style.bare(axes)
        named = sorted(present - {IGNORED}, key=lambda label: (label not in data.forgotten, label))
        handles = [Patch(color=colors[label], label=plain_text(data.classes[label])) for label in named[:_LEGEND]]
        style.legend(figure, handles, min(len(handles), 7), handlelength=0.9)
        if len(named) > _LEGEND:
            notes.append(f"{len(named) - _LEGEND} more classes in these images are not named.")
        before, after = (100 * data.forgotten_share(masks)[:count].mean() for masks in (data.before, data.after))
        words = f"pixels given to {data.forgotten_words} go from {before:.1f} % to {after:.1f} %"
        return finish(style, figure, f"Segmentation of {count} images; {words}.", notes)


def drawn_step(masks: NDArray[np.integer]) -> int:
    """Return the distance in pixels of the drawn pixels of scenes, (n, H, W)."""
    longest: int = max(masks.shape[1:])
    return max(1, -(-longest // _SIDE))


def _overlay(
    pixels: NDArray[np.float64], mask: NDArray[np.integer], colors: list[str], data: SegmentationData
) -> NDArray[np.float64]:
    """Return an image with its mask on top. The last colour is that of ignored pixels."""
    table = np.array([to_rgb(color) for color in colors])
    grey = pixels.mean(axis=2, keepdims=True)
    weight = np.where(np.isin(mask, data.forgotten), 0.8, 0.55)[..., None]
    color = table[np.where(mask == IGNORED, len(table) - 1, mask.astype(np.int64))]
    mixed: NDArray[np.float64] = (1 - weight) * (0.5 * pixels + 0.5 * grey) + weight * color
    return mixed.clip(0, 1)
