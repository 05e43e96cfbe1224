"""Random direction: the control that projects out a direction which means nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.geometry.projector import Projector
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.projecting.project import project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.unlearning.contract import Method
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["RandomDirection"]


@register
@dataclass(kw_only=True)
class RandomDirection(Method):
    """Control: POUR-P with as many random directions as there are classes to forget; the seed draws them.

    The scores become W P z + b with P = I - Q^T Q, Q an orthonormal basis of Gaussian draws. What POUR-P does beyond
    this is due to its direction. The class's own score is kept, because masking it would forget on its own.
    """

    name: ClassVar[str] = "random-direction"
    paper: ClassVar[str] = "control"
    needs: ClassVar[tuple[Need, ...]] = ()
    cost: ClassVar[str] = "milliseconds"
    pixelwise: ClassVar[bool] = True

    forgotten_logit: ForgottenLogit = "keep"
    """The forgotten class's own score: mask (never predicted), keep or zero."""

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Put the projector in front of the head."""
        classes = requested_classes(model, request)
        generator = torch.Generator().manual_seed(run.seed)
        # A second request with the same seed must not draw the directions of the first again.
        earlier = len(forgotten_before(model) - set(classes))
        drawn = torch.randn(earlier + len(classes), find_head(model).num_features, generator=generator)
        projector = Projector.from_directions(drawn[earlier:])
        return project(model, projector, classes=classes, forgotten_logit=self.forgotten_logit)
