"""ESC: remove the directions in which the forget features are largest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.unlearning.contract import option
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.features import feature_rows
from pour.unlearning.toolkit.projecting import ProjectingMethod

if TYPE_CHECKING:
    from torch import nn

    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Esc"]


@register
@dataclass(kw_only=True)
class Esc(ProjectingMethod):
    """Project the top singular directions of the forget features out of all features; closed form.

    With Z = U S V^T the uncentred features of the forget images as columns, the features become
    z - U_k U_k^T z with k = int(share * d), 7 of 512 at the published 1.5 %. At rank 1 it is POUR-P along the top
    singular direction, which is close to the uncentred mean, not to the head's row. The head does not change.
    """

    name: ClassVar[str] = "esc"
    paper: ClassVar[str] = "ESC (Lee et al., CVPR 2025)"
    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "one pass over forget images"

    share: float = option(
        0.015, "Share of the features' dimensions to remove, rounded down but at least one.", above=0, below=1
    )
    rank: int | None = option(None, "Number of directions to remove, instead of the share.", least=1)

    def removal(self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run) -> Projector:
        """Return the projector onto the complement of the directions."""
        width = head.num_features
        rank = self.rank if self.rank is not None else max(1, int(width * self.share))
        # The d x d sum of outer products has the same directions as all features together, and takes one pass.
        gram = torch.zeros(width, width, dtype=torch.float64)
        for features, _ in feature_rows(model, head, request.forget.once(run), run):
            wide = features.double()
            gram = gram.to(wide.device) + wide.T @ wide
        values, vectors = torch.linalg.eigh(gram)
        dimensions = int((values > values[-1] * width * torch.finfo(torch.float32).eps).sum())
        if rank > dimensions or rank >= width:
            raise UsageError(
                f"esc cannot remove {rank} directions, because the forget features span only {dimensions} of {width} "
                "dimensions, and one must remain; lower rank or share."
            )
        run.log(0, energy_removed=(values[-rank:].sum() / values.sum()).item())
        return Projector.from_directions(vectors[:, -rank:].flip(1).T.float())
