"""POUR-P: the closed-form projection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.models.card import change_card
from pour.models.head import find_head, heads_of
from pour.models.history import forgotten_before
from pour.models.projecting.direction import HeadDirection, check_finite, class_removals
from pour.models.projecting.project import one_or_all, project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.unlearning.contract import Method, option
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["PourP"]


@register
@dataclass(kw_only=True)
class PourP(Method):
    """Project the forgotten classes out of the features; closed form, no data, encoder untouched.

    With direction="weights" (the paper) the scores become W P z + b with P = I - w_u w_u^T / |w_u|^2. For several
    classes, P is the projector on the complement of all their rows. If the head has not collapsed, the class can still
    win. In the other directions, v_u and c_u are the row and the bias of the class, minus the means over all classes.
    "scores" maps z to z - v_u (v_u z + c_u) / |v_u|^2. Then the score of the class is the mean of all scores, and the
    class never wins. "decisions" maps z to z - a (v_u z + c_u) with the smallest a that shifts all retained scores
    alike. The score of the class is the mean again, and no decision between retained classes changes. "auto" takes
    "decisions" if |a| |v_u| is at most 4, otherwise "scores". The paper's method is direction="weights" with
    forgotten_logit="keep".
    """

    name: ClassVar[str] = "pour-p"
    paper: ClassVar[str] = "POUR (Le et al., CVPR 2026)"
    needs: ClassVar[tuple[Need, ...]] = ()
    cost: ClassVar[str] = "below a second"
    pixelwise: ClassVar[bool] = True
    several_heads: ClassVar[bool] = True

    forgotten_logit: ForgottenLogit = option(
        "mask", "Score of a forgotten class: mask (never predicted), keep (as printed in the paper) or zero."
    )
    direction: HeadDirection = option(
        "auto",
        "Direction to remove: auto (decisions or scores), decisions, scores, centered-weights or weights (paper).",
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Put the projector P in front of the head: the scores W z + b become W P z + b."""
        head = find_head(model)
        heads = heads_of(model, head)
        for each in heads:
            check_finite(each)
        classes = requested_classes(model, request)
        removals, direction = class_removals(heads, classes, self.direction, earlier=forgotten_before(model))
        for removal, each in zip(removals, heads, strict=True):
            model = project(model, removal, place=each, classes=classes, forgotten_logit=self.forgotten_logit)
        if head.further_heads:
            change_card(model, head=head.names)
        run.choose(direction=direction, head=one_or_all([each.name for each in heads]))
        return model
