"""Boundary expand: train the forget images into a spare class, then remove that class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from pour.errors import UsageError
from pour.models.copy_and_swap import swap_module
from pour.models.head import find_head
from pour.models.linear_form import is_affine
from pour.models.output import scores_of
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import to_unit
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy
from pour.unlearning.registry import register
from pour.unlearning.toolkit.teachers import frozen_copy
from pour.unlearning.toolkit.weight_checks import check_weight

if TYPE_CHECKING:
    from torch import Tensor

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["BoundaryExpand"]


@register
@dataclass(kw_only=True)
class BoundaryExpand(ForgetOnlyMethod):
    """Train forget images into an extra class C+1, then drop that class from the head.

    The head gets one more row (Xavier weight, zero bias), and the loss is the (C+1)-way CE(l(x), C+1) over all
    parameters. Then the row is removed, and the head has its C rows again. The forgotten class can then win again, so
    some accuracy on it is expected to return. The defaults are from DELETE's code (the original paper: SGD 1e-5, 10
    epochs, batches of 64).
    """

    name: ClassVar[str] = "boundary-expand"
    paper: ClassVar[str] = "Boundary Unlearning (Chen et al., CVPR 2023)"

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Widen the head, train, narrow it again."""
        head = find_head(model)
        if isinstance(head.module, ProjectedHead):
            raise UsageError("boundary-expand widens a plain head; fold the projected model first (pour.fold).")
        layer = head.layer
        if not isinstance(layer, nn.Linear | nn.Conv2d) or not is_affine(layer):
            raise UsageError(
                f"The head {head.name!r} is a {type(layer).__name__} that computes more than W z + b, so "
                "boundary-expand cannot add a row to it; use another method."
            )
        extra = head.num_classes
        # The teacher of the anchors has the head as it was.
        original = frozen_copy(model, run) if self.anchor == "views" else model
        check_weight(layer, head.name, self.name)
        wide = _widened(layer)
        model = swap_module(model, layer, wide)

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(scores_of(student(to_unit(images))), torch.full_like(labels, extra))

        self.train_on_forget(model, objective, request, run, teacher=original)
        with torch.no_grad():
            for parameter, trained in _pairs(layer, wide):
                parameter.copy_(trained[:extra])
        model = swap_module(model, wide, layer).to(run.torch_device)
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model


def _widened(layer: nn.Linear | nn.Conv2d) -> nn.Linear | nn.Conv2d:
    """Return a layer with the rows of `layer` and one more."""
    wide: nn.Linear | nn.Conv2d
    if isinstance(layer, nn.Linear):
        wide = nn.Linear(layer.in_features, layer.out_features + 1, bias=layer.bias is not None)
    else:
        wide = nn.Conv2d(layer.in_channels, layer.out_channels + 1, 1, bias=layer.bias is not None)
    wide.to(layer.weight.device, layer.weight.dtype)
    with torch.no_grad():
        nn.init.xavier_uniform_(wide.weight)
        wide.weight[:-1] = layer.weight
        if wide.bias is not None and layer.bias is not None:
            wide.bias.zero_()
            wide.bias[:-1] = layer.bias
    for parameter, new in _pairs(layer, wide):
        new.requires_grad_(parameter.requires_grad)
    return wide


def _pairs(layer: nn.Module, wide: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Return the pairs of weights and of biases. Further parameters of `layer` have no counterpart in `wide`."""
    return [(layer.get_parameter(name), new) for name, new in wide.named_parameters()]
