"""Grad-CAM of each class before and after forgetting, with what the original head row still finds."""

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
from pour.report.figures.style import FULL_WIDTH, Theme, drawing, finish, listed, plain_text, shortened

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["GradCamData", "draw_gradcam", "gradcam_data"]

_COLUMNS = 10
_MOST = 20
_PIXELS = 112
# What rounding leaves of a score that is zero by construction.
_NOTHING = 1e-5

Maps = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class GradCamData:
    """Maps of each image's own class, in [0, 1] of the largest value among an image's three maps."""

    images: NDArray[np.float64]
    """(n, H, W, 3) in [0, 1]."""
    labels: NDArray[np.int64]
    """(n,) the class that each map is about."""
    classes: tuple[str, ...]
    forgotten: tuple[int, ...]
    before: Maps
    """(n, h, w) of the original model."""
    after: Maps
    """(n, h, w) of the unlearned model through its own score; zero where POUR-P made that score constant."""
    through_original: Maps
    """(n, h, w) of the unlearned model's encoder through the original's head row."""
    projected: bool
    """Whether a projector stands before the unlearned model's head."""


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
    """Compute the three maps of every image.

    Args:
        original: the model before forgetting.
        unlearned: the model after; its features must be as wide as the original's.
        images: (n, channels, H, W), uint8, or floats in [0, 1]; one or two of a class make a readable figure.
        labels: (n,) the classes to ask about, usually the true ones.
        classes: names of all classes.
        forgotten: indices of the forgotten ones.
        head: name of the models' head, where it is not found by itself.
    """
    rows = head_of(unwrap(original), images, head).weight
    after_head = head_of(unwrap(unlearned), images, head)
    if rows.shape[1] != after_head.num_features:
        raise UsageError(
            f"The original's head reads {rows.shape[1]} features, the unlearned model has {after_head.num_features}."
        )
    asked = labels.to(torch.int64)
    if len(asked) and int(asked.max()) >= len(classes):
        raise UsageError(f"labels hold {int(asked.max())}, but there are {len(classes)} class names.")
    layer = find_map_layer(unlearned, images, head=head)
    raw = [
        grad_cam(original, images, asked, head=head),
        grad_cam(unlearned, images, asked, head=head, layer=layer),
        grad_cam(unlearned, images, asked, rows=rows, head=head, layer=layer),
    ]
    found = [values.detach().cpu().double() for values in raw]
    top = torch.stack([values.amax(dim=(1, 2)) for values in found]).amax(dim=0).clamp(min=1e-30)
    scaled = [values / top[:, None, None] for values in found]
    before, after, through = (torch.where(values < _NOTHING, 0.0, values).numpy() for values in scaled)
    pixels = to_unit(images.detach().cpu()).double().permute(0, 2, 3, 1).clamp(0, 1)
    if pixels.shape[3] not in (1, 3):
        pixels = pixels.mean(dim=3, keepdim=True)
    return GradCamData(
        images=pixels.expand(-1, -1, -1, 3).numpy(),
        labels=asked.cpu().numpy(),
        classes=tuple(classes),
        forgotten=tuple(sorted(forgotten)),
        before=before,
        after=after,
        through_original=through,
        projected=isinstance(after_head.module, ProjectedHead),
    )


def draw_gradcam(data: GradCamData, *, theme: Theme = "light") -> Figure:
    """Draw a column to each image, forgotten classes first: its map before, after, and by the old row."""
    gone = np.isin(data.labels, data.forgotten)
    order = np.concatenate([np.flatnonzero(gone), np.flatnonzero(~gone)])[:_MOST]
    if not len(order):
        raise UsageError("There are no images to draw maps of; give at least one.")
    columns = min(len(order), _COLUMNS)
    blocks = math.ceil(len(order) / columns)
    kinds = [
        ("image", None),
        ("before", data.before),
        ("after,\nown score", data.after),
        ("after, original\nhead row", data.through_original),
    ]
    notes = ["The three maps of an image share one scale."]
    if data.projected and gone.any() and np.all(data.after[gone] == 0):
        notes.append("A projected class's own map is zero by construction; the last row asks the encoder itself.")
    if len(order) < len(data.labels):
        notes.append(f"{len(order)} of {len(data.labels):,} images.")
    with drawing(theme) as style:
        cell = min((FULL_WIDTH - 0.75) / columns, 1.1)
        figure = style.figure(cell * columns + 0.75, (cell * 4 + 0.24) * blocks + 0.18)
        figure.get_layout_engine().set(w_pad=0.015, h_pad=0.015, wspace=0.0, hspace=0.0)  # type: ignore[union-attr,call-arg]
        grid = figure.subplots(4 * blocks, columns, squeeze=False)
        for axes in grid.flat:
            axes.set_axis_off()
            # Ticks cost time in the layout even where they are not drawn.
            axes.set(xticks=[], yticks=[])
        for place, i in enumerate(order):
            block, column = divmod(place, columns)
            for line, (title, maps) in enumerate(kinds):
                axes = grid[4 * block + line, column]
                _draw_cell(axes, data.images[i], None if maps is None else maps[i])
                if column == 0:
                    axes.text(
                        -0.1,
                        0.5,
                        title,
                        transform=axes.transAxes,
                        ha="right",
                        va="center",
                        fontsize=6.5,
                        color=style.muted,
                    )
            color = style.forgotten if gone[i] else style.text
            grid[4 * block, column].set_title(
                _two_lines(data.classes[data.labels[i]], max(6, int(cell * 17))),
                fontsize=6.5,
                color=color,
                pad=3,
            )
        style.note(figure, notes)
        return finish(
            figure,
            f"Grad-CAM maps before and after forgetting {listed([data.classes[label] for label in data.forgotten])}, "
            f"for {len(order)} images; on forgotten ones the own map's peak goes from {_peak(data.before[gone]):.2f} "
            f"to {_peak(data.after[gone]):.2f}, through the original's head row it is "
            f"{_peak(data.through_original[gone]):.2f}.",
        )


def _two_lines(name: str, letters: int) -> str:
    lines = textwrap.wrap(shortened(name, length=2 * letters + 8), width=letters, max_lines=2, placeholder="…")
    return "\n".join(plain_text(line) for line in lines)


def _peak(maps: Maps) -> float:
    return float(maps.max(axis=(1, 2)).mean()) if len(maps) else 0.0


def _draw_cell(axes: Axes, image: NDArray[np.float64], heat: Maps | None) -> None:
    factor = max(1, math.ceil(_PIXELS / max(image.shape[:2])))
    pixels = image.repeat(factor, axis=0).repeat(factor, axis=1)
    if heat is not None:
        size = pixels.shape[:2]
        smooth = torch.nn.functional.interpolate(torch.tensor(heat)[None, None], size=size, mode="bilinear")[
            0, 0
        ].numpy()
        pixels = 0.45 * pixels + 0.55 * matplotlib.colormaps["inferno"](smooth)[..., :3]
    axes.imshow((255 * pixels.clip(0, 1)).round().astype(np.uint8), interpolation="none")
