"""POUR-P: the closed-form projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, get_args

from pour.errors import UsageError
from pour.methods.contract import Method, register
from pour.methods.request import Need
from pour.models.forgetting import RowDirection, forget
from pour.models.projected import ForgottenLogit

if TYPE_CHECKING:
    from torch import nn

    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["PourP"]


@register
@dataclass(kw_only=True)
class PourP(Method):
    """Project the forgotten classes' head rows out of the features; closed form, no data, encoder untouched.

    The scores become W P z + b with P = I - w_u w_u^T / |w_u|^2 (the paper's equation for P; several classes: the
    projector on the complement of all their rows). For heads that have not collapsed: direction="scores" projects onto
    the features at which the class scores the mean of all classes, "decisions" does so and keeps retained decisions.
    """

    name: ClassVar[str] = "pour-p"
    paper: ClassVar[str] = "POUR (Le et al., CVPR 2026)"
    needs: ClassVar[tuple[Need, ...]] = ()
    cost: ClassVar[str] = "milliseconds"
    pixelwise: ClassVar[bool] = True

    forgotten_logit: ForgottenLogit = "mask"
    """The forgotten class's own score: mask (never predicted), keep (as printed in the paper) or zero."""
    direction: RowDirection = "weights"
    """What is taken away: the head's rows, these less their mean, or scores (decisions: and no retained decision)."""

    def __post_init__(self) -> None:
        if self.direction not in get_args(RowDirection):
            raise UsageError(
                f"direction must be weights, centered-weights, scores or decisions, but is {self.direction!r}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Put the projector in front of the head."""
        return forget(model, request.classes, direction=self.direction, forgotten_logit=self.forgotten_logit)
