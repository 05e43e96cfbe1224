"""Forgetting on feature maps: which cells belong to the forgotten class, and what they hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.fitter import ProjectorFitter
from pour.models.head import evaluating
from pour.models.segmentation import cell_labels
from pour.models.tap import tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from pour.geometry.projector import Projector
    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["CellSurvey", "cell_distance", "forgotten_cells", "survey_cells"]

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


@dataclass(frozen=True)
class CellSurvey:
    """What the forgotten classes' cells hold before a method starts."""

    fitter: ProjectorFitter
    """Their mean features."""
    mean: Tensor
    """E[z], (d,)."""
    second_moment: Tensor
    """E[z z^T], (d, d)."""

    def removed(self, projector: Projector | Eraser) -> float:
        """E |z - P z|^2: how much has to move."""
        eraser = projector if isinstance(projector, Eraser) else Eraser.of(projector)
        replies, readings, constant = (
            part.to(self.second_moment) for part in (eraser.replies, eraser.readings, eraser.constant)
        )
        crossed = torch.outer(readings @ self.mean, constant)
        moments = readings @ self.second_moment @ readings.T - crossed - crossed.T + torch.outer(constant, constant)
        return float((replies @ replies.T * moments).sum())


def survey_cells(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], classes: tuple[int, ...], run: Run
) -> CellSurvey:
    """Run ``model`` once over forget images and sum up the cells whose middle shows a forgotten class."""
    model.to(run.torch_device)
    fitter = ProjectorFitter(classes=list(classes))
    total = torch.zeros(head.num_features, head.num_features, dtype=torch.float64, device=run.torch_device)
    summed = torch.zeros_like(total[0])
    count = 0
    with evaluating(model), torch.inference_mode(), tap_features(model, head) as tap:
        for images, labels in batches:
            model(to_unit(images.to(run.torch_device)))
            maps = tap.features.float()
            cells = cell_labels(model, labels.to(run.torch_device), (maps.shape[2], maps.shape[3]))
            chosen = torch.isin(cells, torch.tensor(classes, device=cells.device))
            rows = maps.movedim(1, -1)[chosen]
            fitter.update(rows, cells[chosen])
            total += rows.double().T @ rows.double()
            summed += rows.double().sum(dim=0)
            count += len(rows)
    if not count:
        raise UsageError("The forget images show no pixel of the forgotten classes; check the masks.")
    return CellSurvey(fitter, summed.clone() / count, total.clone() / count)
