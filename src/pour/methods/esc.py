"""ESC: remove the directions in which the forget features are largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.models.head import find_head
from pour.models.projecting.project import project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.unlearning.contract import Method
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.features import feature_rows

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Esc"]


@register
@dataclass(kw_only=True)
class Esc(Method):
    """Project the top singular directions of the forget features out of all features; closed form.

    With Z = U S V^T the uncentred features of the forget images, one a column, the features become
    z - U_k U_k^T z, k = int(share * d): 7 of 512 at the published 1.5 %. At rank 1 it is POUR-P along the top
    singular direction, which is close to the uncentred mean, not to the head's row. The head stays as it is.
    """

    name: ClassVar[str] = "esc"
    paper: ClassVar[str] = "ESC (Lee et al., CVPR 2025)"
    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "one pass over forget images"

    share: float = 0.015
    """The share of the features' dimensions to remove, rounded down but at least one."""
    rank: int | None = None
    """The number of directions to remove, in place of the share."""
    forgotten_logit: ForgottenLogit = "keep"
    """The forgotten class's own score: mask (never predicted), keep or zero."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise UsageError(f"share must be above 0 and below 1, but is {self.share}.")
        if self.rank is not None and self.rank < 1:
            raise UsageError(f"rank must be at least 1, but is {self.rank}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Find the directions and put the projector in front of the head."""
        classes = requested_classes(model, request)
        head = find_head(model)
        width = head.num_features
        rank = self.rank if self.rank is not None else max(1, int(width * self.share))
        # The d x d sum of outer products has the same directions as all features together, and takes one pass.
        gram = torch.zeros(width, width, dtype=torch.float64)
        for features, _ in feature_rows(model, head, request.forget.once(run), run):
            wide = features.double()
            gram = gram.to(wide.device) + wide.T @ wide
        values, vectors = torch.linalg.eigh(gram)
        found = int((values > values[-1] * width * torch.finfo(torch.float32).eps).sum())
        if rank > found or rank >= width:
            raise UsageError(
                f"esc was asked to remove {rank} directions, but the forget features fill only {found} of {width} "
                "dimensions, and one must remain; lower rank or share."
            )
        run.log(0, energy_removed=(values[-rank:].sum() / values.sum()).item())
        directions = vectors[:, -rank:].flip(1).T.float()
        projector = Projector.from_directions(directions)
        return project(model, projector, classes=classes, forgotten_logit=self.forgotten_logit)
