"""DELETE: distil the original's own predictions, the forgotten class taken out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from pour.models.history import forgotten_before
from pour.models.output import scores_of
from pour.models.tap import extract_features, to_unit
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, requested_classes
from pour.unlearning.registry import register
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Delete", "delete_target"]


@register
@dataclass(kw_only=True)
class Delete(ForgetOnlyMethod):
    """Distil the original's predictions on forget images, with the forgotten classes' share handed to the others.

    The target is p = softmax over l_o(x) with the scores of the forgotten classes, those of earlier requests among
    them, at minus infinity, without temperature; the loss KL(p || softmax l_s(x)), averaged over the batch, over all
    parameters (defaults of DELETE's code). On a very confident original p rests on tiny differences of scores, so the
    mean entropy of p is logged.
    """

    name: ClassVar[str] = "delete"
    paper: ClassVar[str] = "DELETE (Zhou et al., CVPR 2025)"

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Distil the masked original into ``model``."""
        # A class that was forgotten before is no answer either.
        classes = tuple(sorted({*requested_classes(model, request), *forgotten_before(model)}))
        teacher = frozen_copy(model, run)
        seen = extract_features(teacher, request.forget.once(run), device=run.torch_device)
        target = delete_target(seen.scores, seen.labels, classes)
        run.log(0, target_entropy=-torch.xlogy(target, target).sum(dim=1).mean().item())

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            images = to_unit(images)
            with torch.no_grad():
                target = delete_target(scores_of(teacher(images)), labels, classes)
            logarithms = F.log_softmax(scores_of(student(images)).float(), dim=1)
            return F.kl_div(logarithms, target, reduction="batchmean")

        batches = request.forget.training(run, batch_size=self.batch_size, augment=self.augment)
        batches, loss = self.anchored(model, request, run, batches, objective, teacher=teacher)
        self.train(model, batches, loss, run)
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model


def delete_target(scores: Tensor, labels: Tensor, classes: tuple[int, ...] = ()) -> Tensor:
    """DELETE's target: the softmax of ``scores`` (n, C) without each image's own label and without ``classes``.

    Example:
        >>> delete_target(torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([0]))
        tensor([[0.0000, 0.5000, 0.5000]])
    """
    columns = torch.arange(scores.shape[1], device=scores.device)
    masked = columns == labels[:, None]
    for label in classes:
        masked = masked | (columns == label)
    return scores.float().masked_fill(masked, -torch.inf).softmax(dim=1)
