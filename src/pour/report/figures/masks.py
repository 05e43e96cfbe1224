"""Segmentation before and after forgetting: masks on top of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from numpy.typing import NDArray

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, ClassNames, Theme, drawing, finish, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.figure import Figure

__all__ = ["SegmentationData", "draw_segmentation", "segmentation_data"]

_ROWS = 6
_LEGEND = 14
_SIDE = 320
Mask = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SegmentationData(ClassNames):
    """Images with their true and predicted masks."""

    images: tuple[NDArray[np.float64], ...]
    """Images in [0, 1], each (H, W, 3)."""
    truth: tuple[Mask, ...]
    """True classes of the pixels, each (H, W)."""
    before: tuple[Mask, ...]
    """Classes that the original model predicts."""
    after: tuple[Mask, ...]
    """Classes that the unlearned model predicts."""
    void: int | None
    """Label of ignored pixels."""

    def forgotten_share(self, masks: tuple[Mask, ...]) -> NDArray[np.float64]:
        """Return the share of each image's pixels, without ignored ones, that a mask gives to forgotten classes."""
        shares = []
        for mask, truth in zip(masks, self.truth, strict=True):
            counted = mask[truth != self.void]
            shares.append(float(np.isin(counted, self.forgotten).mean()) if counted.size else 0.0)
        return np.array(shares)


def segmentation_data(
    images: Sequence[NDArray[np.uint8]] | NDArray[np.uint8],
    truth: Sequence[NDArray[np.integer]],
    before: Sequence[NDArray[np.integer]],
    after: Sequence[NDArray[np.integer]],
    *,
    classes: Sequence[str],
    forgotten: Collection[int],
    void: int | None = None,
) -> SegmentationData:
    """Return images and masks together. Raise UsageError if their shapes or labels do not fit.

    Args:
        images: Images in uint8, each (H, W, 3). Their sizes may differ.
        truth: True class indices, each (H, W).
        before: Masks of the original model.
        after: Masks of the unlearned model.
        classes: Names of all classes.
        forgotten: Indices of the forgotten classes.
        void: Label of ignored pixels.
    """
    if not len(images) == len(truth) == len(before) == len(after) or not len(images):
        raise UsageError(
            f"There are {len(images)} images, {len(truth)} true masks, {len(before)} before and {len(after)} after; "
            "give as many of each, at least one."
        )
    for i, image in enumerate(images):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise UsageError(f"Image {i} is {image.dtype} of {image.shape}; expected uint8 of (H, W, 3).")
        for name, mask in {"true": truth[i], "before": before[i], "after": after[i]}.items():
            if mask.shape != image.shape[:2]:
                raise UsageError(f"The {name} mask of image {i} is {mask.shape}, the image {image.shape[:2]}.")
            if not np.isin(mask, [*range(len(classes)), -1 if void is None else void]).all():
                raise UsageError(f"The {name} mask of image {i} holds labels outside the {len(classes)} classes.")
    masks = [tuple(np.asarray(mask, np.int64) for mask in kind) for kind in (truth, before, after)]
    return SegmentationData(
        images=tuple(image / 255.0 for image in images),
        truth=masks[0],
        before=masks[1],
        after=masks[2],
        classes=tuple(classes),
        forgotten=tuple(sorted(forgotten)),
        void=void,
    )


def draw_segmentation(data: SegmentationData, *, theme: Theme = "light") -> Figure:
    """Draw one row per image: image, truth, before and after, with the forgotten classes in dark red."""
    count = min(len(data.images), _ROWS)
    notes = [f"{count} of {len(data.images):,} images."] if count < len(data.images) else []
    with drawing(theme) as style:
        cell = (FULL_WIDTH - 0.2) / 4
        heights = [min(image.shape[0] / image.shape[1], 1.5) * cell + 0.16 for image in data.images[:count]]
        figure = style.figure(FULL_WIDTH, sum(heights) + 0.75, gap=0.02)
        grid = figure.subplots(count, 4, squeeze=False, height_ratios=heights)
        colors = style.class_colors(len(data.classes), data.forgotten)
        table = np.array([to_rgb(color) for color in [*colors, style.muted]])
        present: set[int] = set()
        kinds = [("image", None), ("truth", data.truth), ("before", data.before), ("after", data.after)]
        for (title, masks), column in zip(kinds, grid.T, strict=True):
            column[0].set_title(title)
            for i, axes in enumerate(column):
                step = max(1, -(-max(data.images[i].shape[:2]) // _SIDE))
                pixels = data.images[i][::step, ::step]
                if masks is not None:
                    mask = masks[i][::step, ::step]
                    present |= set(np.unique(mask).tolist())
                    pixels = _overlay(pixels, mask, table, data)
                    text = f"forgotten: {100 * data.forgotten_share(masks)[i]:.1f} %"
                    axes.set_xlabel(text, fontsize=6.5, color=style.forgotten, labelpad=2)
                axes.imshow((255 * pixels).round().astype(np.uint8), interpolation="none")
                style.bare(axes)
        named = sorted(present - {data.void}, key=lambda label: (label not in data.forgotten, label))
        handles = [Patch(color=colors[label], label=plain_text(data.classes[label])) for label in named[:_LEGEND]]
        style.legend(figure, handles, min(len(handles), 7), handlelength=0.9)
        if len(named) > _LEGEND:
            notes.append(f"{len(named) - _LEGEND} more classes in these images are not named.")
        before, after = (100 * data.forgotten_share(masks)[:count].mean() for masks in (data.before, data.after))
        words = f"pixels given to {data.forgotten_words} go from {before:.1f} % to {after:.1f} %"
        return finish(style, figure, f"Segmentation of {count} images; {words}.", notes)


def _overlay(
    pixels: NDArray[np.float64], mask: Mask, table: NDArray[np.float64], data: SegmentationData
) -> NDArray[np.float64]:
    index = np.where(mask == data.void, len(table) - 1, mask)
    is_forgotten = np.isin(mask, data.forgotten) & (mask != data.void)
    grey = pixels.mean(axis=2, keepdims=True)
    weight = np.where(is_forgotten, 0.8, 0.55)[..., None]
    mixed: NDArray[np.float64] = (1 - weight) * (0.5 * pixels + 0.5 * grey) + weight * table[index]
    return mixed.clip(0, 1)
