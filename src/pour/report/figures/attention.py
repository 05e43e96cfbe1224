"""Grad-CAM of each class before and after forgetting, also through the original's head row."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import to_unit
from pour.models.unwrap import unwrap
from pour.report.figures.gradcam import find_map_layer, grad_cam, head_of
from pour.report.figures.style import FULL_WIDTH, ClassNames, Theme, drawing, finish, plain_text, shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GradCamData", "draw_gradcam", "gradcam_data"]

_MOST = 10
_TITLES = ("image", "before", "after,\nown score", "after, original\nhead row")
_PIXELS = 112
# Smaller values are the rounding error of a score that is zero by construction.
_ZERO = 1e-5

Maps = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GradCamData(ClassNames):
    """Maps of each image's class, divided by the largest value in the image's three maps."""

    images: NDArray[np.float64]
    """Images in [0, 1], (n, H, W, 3)."""
    labels: NDArray[np.int64]
    """Class of each image's maps, (n,)."""
    maps: Mapping[str, Maps]
    """Three maps of each image, (n, h, w) each.

    - `before`: of the original model.
    - `after`: of the unlearned model's own score. POUR-P makes that score constant, and its map zero.
    - `through original`: of the unlearned model's encoder with the original's head row.
    """
    projected: bool
    """Whether the unlearned model has a projector before its head."""


def gradcam_data(
    original: nn.Module,
    unlearned: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    classes: Sequence[str],
    forgotten: Collection[int],
    head: str | None = None,
) -> GradCamData:
    """Compute the three maps of each image.

    Args:
        original: Model before forgetting.
        unlearned: Model after forgetting, with features of the same width.
        images: Images in uint8, or floats in [0, 1], (n, channels, H, W). One or two per class fit into a figure.
        labels: Class of each image's maps, (n,), usually the true class.
        classes: Names of all classes.
        forgotten: Indices of the forgotten classes.
        head: Name of the models' head, if pour cannot find it.
    """
    rows = head_of(unwrap(original), images, head).weight
    unlearned_head = head_of(unwrap(unlearned), images, head)
    if rows.shape[1] != unlearned_head.num_features:
        raise UsageError(
            f"The original's head reads {rows.shape[1]} features, the unlearned model has "
            f"{unlearned_head.num_features}."
        )
    labels = labels.to(torch.int64)
    if int(labels.max()) >= len(classes):
        raise UsageError(f"labels hold {int(labels.max())}, but there are {len(classes)} class names.")
    layer = find_map_layer(unlearned, images, head=head)
    maps = {
        "before": grad_cam(original, images, labels, head=head),
        "after": grad_cam(unlearned, images, labels, head=head, layer=layer),
        "through original": grad_cam(unlearned, images, labels, rows=rows, head=head, layer=layer),
    }
    values = {name: part.detach().cpu().double() for name, part in maps.items()}
    top = torch.stack([part.amax(dim=(1, 2)) for part in values.values()]).amax(dim=0).clamp(min=1e-30)
    scaled = {name: part / top[:, None, None] for name, part in values.items()}
    pixels = to_unit(images.detach().cpu()).double().permute(0, 2, 3, 1).clamp(0, 1)
    if pixels.shape[3] not in (1, 3):
        pixels = pixels.mean(dim=3, keepdim=True)
    return GradCamData(
        images=pixels.expand(-1, -1, -1, 3).numpy(),
        labels=labels.cpu().numpy(),
        classes=tuple(classes),
        forgotten=tuple(sorted(forgotten)),
        maps={name: torch.where(part < _ZERO, 0.0, part).numpy() for name, part in scaled.items()},
        projected=isinstance(unlearned_head.module, ProjectedHead),
    )


def draw_gradcam(data: GradCamData, *, theme: Theme = "light") -> Figure:
    """Draw one column per image, forgotten classes first, with its maps before, after, and with the original's row."""
    is_forgotten = np.isin(data.labels, data.forgotten)
    order = np.argsort(~is_forgotten, kind="stable")[:_MOST]
    if not len(order):
        raise UsageError("There are no images to draw maps of; give at least one.")
    notes = ["The three maps of an image share one scale."]
    if data.projected and is_forgotten.any() and np.all(data.maps["after"][is_forgotten] == 0):
        notes.append("A projected class's own map is zero by construction; the last row asks the encoder itself.")
    if len(order) < len(data.labels):
        notes.append(f"{len(order)} of {len(data.labels):,} images.")
    with drawing(theme) as style:
        cell = min((FULL_WIDTH - 0.75) / len(order), 1.1)
        figure = style.figure(cell * len(order) + 0.75, cell * 4 + 0.42, gap=0.015)
        grid = figure.subplots(4, len(order), squeeze=False)
        for axes in grid.flat:
            # Without ticks the layout is faster, although the axes are not visible.
            axes.set(xticks=[], yticks=[])
            axes.set_axis_off()
        for axes, title in zip(grid[:, 0], _TITLES, strict=True):
            style.small_text(axes, -0.1, 0.5, title, ha="right", va="center")
        for i, column in zip(order, grid.T, strict=True):
            for axes, maps in zip(column, (None, *data.maps.values()), strict=True):
                _draw_cell(axes, data.images[i], None if maps is None else maps[i])
            name = _two_lines(data.classes[data.labels[i]], max(6, int(cell * 17)))
            color = style.forgotten if is_forgotten[i] else style.text
            column[0].set_title(name, fontsize=6.5, color=color, pad=3)
        # Without forgotten images the peaks are 0.
        peaks = [maps[is_forgotten].max(axis=(1, 2)).sum() / max(is_forgotten.sum(), 1) for maps in data.maps.values()]
        text = (
            f"Grad-CAM maps before and after forgetting {data.forgotten_words}, for {len(order)} images; on forgotten "
            f"ones the own map's peak goes from {peaks[0]:.2f} to {peaks[1]:.2f}, through the original's head row it "
            f"is {peaks[2]:.2f}."
        )
        return finish(style, figure, text, notes)


def _two_lines(name: str, letters: int) -> str:
    lines = textwrap.wrap(shortened(name, length=2 * letters + 8), width=letters, max_lines=2, placeholder="…")
    return "\n".join(plain_text(line) for line in lines)


def _draw_cell(axes: Axes, image: NDArray[np.float64], heat: Maps | None) -> None:
    factor = max(1, math.ceil(_PIXELS / max(image.shape[:2])))
    pixels = image.repeat(factor, axis=0).repeat(factor, axis=1)
    if heat is not None:
        maps = torch.tensor(heat)[None, None]
        smooth = torch.nn.functional.interpolate(maps, size=pixels.shape[:2], mode="bilinear")[0, 0].numpy()
        pixels = 0.45 * pixels + 0.55 * matplotlib.colormaps["inferno"](smooth)[..., :3]
    axes.imshow((255 * pixels.clip(0, 1)).round().astype(np.uint8), interpolation="none")
