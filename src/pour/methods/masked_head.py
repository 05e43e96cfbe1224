"""Masked head: the control that only excludes the class from the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.projecting.projected_head import masked_score
from pour.unlearning.contract import Method
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.weight_checks import check_weight

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["MaskedHead"]


@register
@dataclass(kw_only=True)
class MaskedHead(Method):
    """Control: overwrite the forgotten classes' rows of the head and change nothing else.

    The row w_u becomes 0 and its bias a large negative number, so that the class is never predicted. Features do not
    change. On an exact simplex the accuracies equal the accuracies of POUR-P, so report both methods together.
    """

    name: ClassVar[str] = "masked-head"
    paper: ClassVar[str] = "control"
    needs: ClassVar[tuple[Need, ...]] = ()
    cost: ClassVar[str] = "microseconds"
    pixelwise: ClassVar[bool] = True

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Overwrite the rows in place."""
        head = find_head(model)
        layer = head.layer
        classes = list(requested_classes(model, request))
        if getattr(layer, "bias", None) is None:
            raise UsageError(f"The head {head.name!r} has no bias for the mask; masked-head needs one.")
        check_weight(layer, head.name, self.name)
        with torch.no_grad():
            layer.weight[classes] = 0
            layer.bias[classes] = masked_score(layer.weight.dtype)
        return model
