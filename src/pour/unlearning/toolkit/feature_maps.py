"""Forgetting on feature maps: which cells belong to the forgotten class, and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pour.geometry.fitter import ProjectorFitter
from pour.models.modes import evaluating
from pour.models.networks.segmentation import cell_labels
from pour.models.tap import tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor, nn

    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["cell_distance", "cell_means", "forgotten_cells", "maps_of"]

# A cell of a feature map is a few pixels wide; so many points along each side find a thin thing in it.
_POINTS = 4


def forgotten_cells(model: nn.Module, labels: Tensor, classes: tuple[int, ...], size: tuple[int, int]) -> Tensor:
    """Which cells of a feature map hold a pixel of ``classes``: (n, h, w), 1 or 0.

    Args:
        model: whose map it is.
        labels: (n, H, W).
        classes: the forgotten ones.
        size: h and w.
    """
    fine = cell_labels(model, labels, (_POINTS * size[0], _POINTS * size[1]))
    found = torch.zeros(fine.shape, device=labels.device)
    for label in classes:
        found = found + (fine == label)
    return F.max_pool2d(found.unsqueeze(1), _POINTS).squeeze(1).clamp(max=1)


def cell_distance(student: Tensor, target: Tensor, cells: Tensor) -> Tensor:
    """|student - target|^2, summed over features (n, d, h, w) and averaged over the cells that count (n, h, w)."""
    distance = (student - target).square().sum(dim=1)
    return (distance * cells).sum() / cells.sum().clamp(min=1)


def maps_of(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """What the head sees of every batch in evaluation mode, (n, d, h, w), and the labels, both on the run's device."""
    model.to(run.torch_device)
    with evaluating(model), tap_features(model, head) as tap:
        for images, labels in batches:
            # Not around the yield, or it would reach into whoever reads the maps.
            with torch.no_grad():
                model(to_unit(images.to(run.torch_device)))
            yield tap.features.float(), labels.to(run.torch_device)


def cell_means(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], classes: tuple[int, ...], run: Run
) -> ProjectorFitter:
    """The mean features of the cells whose middle shows a forgotten class."""
    fitter = ProjectorFitter(classes=list(classes))
    for maps, labels in maps_of(model, head, batches, run):
        cells = cell_labels(model, labels, (maps.shape[2], maps.shape[3]))
        chosen = torch.isin(cells, torch.tensor(classes, device=cells.device))
        fitter.update(maps.movedim(1, -1)[chosen], cells[chosen])
    return fitter
