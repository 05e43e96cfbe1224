"""Segmentation before and after forgetting: masks laid over images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch
from numpy.typing import NDArray

from pour.errors import UsageError
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, listed, plain_text

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.figure import Figure

__all__ = ["SegmentationData", "draw_segmentation", "segmentation_data"]

_ROWS = 6
_LEGEND = 14
_SIDE = 320
Mask = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SegmentationData:
    """Images with their true and predicted masks."""

    images: tuple[NDArray[np.float64], ...]
    """(H, W, 3) in [0, 1] each."""
    truth: tuple[Mask, ...]
    """(H, W) each."""
    before: tuple[Mask, ...]
    after: tuple[Mask, ...]
    classes: tuple[str, ...]
    forgotten: tuple[int, ...]
    void: int | None
    """Label of pixels that count for nothing."""

    def forgotten_share(self, masks: tuple[Mask, ...]) -> NDArray[np.float64]:
        """For each image, the share of its counted pixels that a mask gives to forgotten classes."""
        shares = []
        for mask, truth in zip(masks, self.truth, strict=True):
            counted = np.ones_like(truth, bool) if self.void is None else truth != self.void
            shares.append(float(np.isin(mask[counted], self.forgotten).mean()) if counted.any() else 0.0)
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
    """Put images and masks together, sizes checked.

    Args:
        images: (H, W, 3) uint8 each; sizes may differ between images.
        truth: (H, W) class indices each.
        before: the original model's masks.
        after: the unlearned model's masks.
        classes: names of all classes.
        forgotten: indices of the forgotten ones.
        void: label of pixels that count for nothing.
    """
    if not len(images) == len(truth) == len(before) == len(after) or not len(images):
        raise UsageError(
            f"There are {len(images)} images, {len(truth)} true masks, {len(before)} before and {len(after)} after; "
            "give as many of each, at least one."
        )
    masks = {"true": truth, "before": before, "after": after}
    for i, image in enumerate(images):
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise UsageError(f"Image {i} is {image.dtype} of {image.shape}; expected uint8 of (H, W, 3).")
        for name, kind in masks.items():
            if kind[i].shape != image.shape[:2]:
                raise UsageError(f"The {name} mask of image {i} is {kind[i].shape}, the image {image.shape[:2]}.")
            known = kind[i][kind[i] != void] if void is not None else kind[i]
            if known.size and (known.min() < 0 or known.max() >= len(classes)):
                raise UsageError(f"The {name} mask of image {i} holds labels outside the {len(classes)} classes.")
    return SegmentationData(
        images=tuple(image / 255.0 for image in images),
        truth=tuple(np.asarray(mask, np.int64) for mask in truth),
        before=tuple(np.asarray(mask, np.int64) for mask in before),
        after=tuple(np.asarray(mask, np.int64) for mask in after),
        classes=tuple(classes),
        forgotten=tuple(sorted(forgotten)),
        void=void,
    )


def draw_segmentation(data: SegmentationData, *, theme: Theme = "light") -> Figure:
    """Draw a row to each image: itself, truth, before and after; the forgotten classes in dark red."""
    count = min(len(data.images), _ROWS)
    notes = [f"{count} of {len(data.images):,} images."] if count < len(data.images) else []
    kinds = [("image", None), ("truth", data.truth), ("before", data.before), ("after", data.after)]
    with drawing(theme) as style:
        cell = (FULL_WIDTH - 0.2) / 4
        heights = [min(image.shape[0] / image.shape[1], 1.5) * cell + 0.16 for image in data.images[:count]]
        figure = style.figure(FULL_WIDTH, sum(heights) + 0.75)
        figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.0, hspace=0.0)  # type: ignore[union-attr,call-arg]
        grid = figure.subplots(count, 4, squeeze=False, height_ratios=heights)
        colors = style.class_colors(len(data.classes), data.forgotten)
        table = np.array([to_rgb(color) for color in colors] + [to_rgb(style.muted)])
        seen: set[int] = set()
        for title, masks in kinds:
            column = [name for name, _ in kinds].index(title)
            shares = None if masks is None else data.forgotten_share(masks)
            for i in range(count):
                axes = grid[i, column]
                step = max(1, -(-max(data.images[i].shape[:2]) // _SIDE))
                pixels = data.images[i][::step, ::step]
                if masks is not None:
                    mask = masks[i][::step, ::step]
                    seen |= set(np.unique(mask).tolist())
                    pixels = _overlay(pixels, mask, table, data)
                axes.imshow((255 * pixels).round().astype(np.uint8), interpolation="none")
                style.bare(axes)
                if i == 0:
                    axes.set_title(title)
                if shares is not None:
                    axes.set_xlabel(
                        f"forgotten: {100 * shares[i]:.1f} %", fontsize=6.5, color=style.forgotten, labelpad=2
                    )
        present = sorted(label for label in seen if label != data.void)
        ordered = [
            *(label for label in present if label in data.forgotten),
            *(x for x in present if x not in data.forgotten),
        ]
        handles = [Patch(color=colors[label], label=plain_text(data.classes[label])) for label in ordered[:_LEGEND]]
        if handles:
            figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 7), handlelength=0.9)
        if len(ordered) > _LEGEND:
            notes.append(f"{len(ordered) - _LEGEND} more classes in these images are not named.")
        style.note(figure, notes)
        before, after = data.forgotten_share(data.before)[:count], data.forgotten_share(data.after)[:count]
        gone = listed([data.classes[label] for label in data.forgotten])
        return finish(
            figure,
            f"Segmentation of {count} images; pixels given to {gone} go from {100 * before.mean():.1f} % to "
            f"{100 * after.mean():.1f} %.",
        )


def _overlay(
    pixels: NDArray[np.float64], mask: Mask, table: NDArray[np.float64], data: SegmentationData
) -> NDArray[np.float64]:
    void = np.zeros_like(mask, bool) if data.void is None else mask == data.void
    index = np.where(void, len(table) - 1, mask)
    gone = np.isin(mask, data.forgotten) & ~void
    grey = pixels.mean(axis=2, keepdims=True)
    weight = np.where(gone, 0.8, 0.55)[..., None]
    mixed: NDArray[np.float64] = (1 - weight) * (0.5 * pixels + 0.5 * grey) + weight * table[index]
    return mixed.clip(0, 1)
