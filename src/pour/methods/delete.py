"""DELETE: distil the original's predictions without the forgotten class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from pour.models.output import scores_of
from pour.models.tap import extract_features, to_unit
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, forgotten_classes
from pour.unlearning.registry import register
from pour.unlearning.toolkit.features import is_among
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Delete", "delete_target"]


@register
@dataclass(kw_only=True)
class Delete(ForgetOnlyMethod):
    """Distil the original's predictions on forget images, after moving the forgotten classes' probability to others.

    The target p is the softmax of the original's scores l_o(x), with the scores of the forgotten classes, also of
    earlier requests, at minus infinity. The loss is KL(p || softmax l_s(x)), averaged over the batch, over all
    parameters, without temperature. The defaults are from DELETE's code. If the original is very confident, p depends
    on tiny differences of scores, so the mean entropy of p is logged.
    """

    name: ClassVar[str] = "delete"
    paper: ClassVar[str] = "DELETE (Zhou et al., CVPR 2025)"
    several_heads: ClassVar[bool] = True

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Distil the masked original into `model`."""
        # A class that was forgotten before must not be a target either.
        classes = forgotten_classes(model, request)
        teacher = frozen_copy(model, run)
        original = extract_features(teacher, request.forget.once(run), device=run.torch_device)
        target = delete_target(original.scores, original.labels, classes)
        run.log(0, target_entropy=-torch.xlogy(target, target).sum(dim=1).mean().item())

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            images = to_unit(images)
            with torch.no_grad():
                target = delete_target(scores_of(teacher(images)), labels, classes)
            logarithms = F.log_softmax(scores_of(student(images)).float(), dim=1)
            return F.kl_div(logarithms, target, reduction="batchmean")

        self.train_on_forget(model, objective, request, run, teacher=teacher)
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model


def delete_target(scores: Tensor, labels: Tensor, classes: tuple[int, ...] = ()) -> Tensor:
    """Return DELETE's target: the softmax of `scores` (n, C) without each image's label and without `classes`.

    Examples:
        >>> delete_target(torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor([[0.0000, 0.5000, 0.5000]])
    """
    columns = torch.arange(scores.shape[1], device=scores.device)
    masked = (columns == labels[:, None]) | is_among(columns, classes)
    return scores.float().masked_fill(masked, -torch.inf).softmax(dim=1)
