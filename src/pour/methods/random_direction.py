"""Random direction: the control that projects out a direction without meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.geometry.projector import Projector
from pour.models.history import forgotten_before
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.projecting import ProjectingMethod

if TYPE_CHECKING:
    from torch import nn

    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["RandomDirection"]


@register
@dataclass(kw_only=True)
class RandomDirection(ProjectingMethod):
    """Control: POUR-P with one random direction per class to forget, drawn with the seed.

    The scores become W P z + b with P = I - Q^T Q, Q an orthonormal basis of Gaussian draws. If POUR-P has a larger
    effect, the effect is due to its direction. The class keeps its score, because a mask alone would forget the class.
    """

    name: ClassVar[str] = "random-direction"
    paper: ClassVar[str] = "control"
    needs: ClassVar[tuple[Need, ...]] = ()
    cost: ClassVar[str] = "below a second"
    pixelwise: ClassVar[bool] = True

    def removal(self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run) -> Projector:
        """Return the projector onto the complement of the random directions."""
        generator = torch.Generator().manual_seed(run.seed)
        # A second request with the same seed must not draw the directions of the first again.
        earlier = len(forgotten_before(model) - set(classes))
        drawn = torch.randn(earlier + len(classes), head.num_features, generator=generator)
        return Projector.from_directions(drawn[earlier:])
