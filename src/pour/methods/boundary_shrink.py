"""Boundary shrink: train each forget image towards its nearest wrong class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F

from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.unlearning.contract import option
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, forgotten_classes
from pour.unlearning.registry import register
from pour.unlearning.toolkit.features import is_among
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["BoundaryShrink", "attack", "nearest_class"]

_PIXEL = 255


@register
@dataclass(kw_only=True)
class BoundaryShrink(ForgetOnlyMethod):
    """Train forget images towards the nearest wrong class, which an attack on the original determines.

    One step of the fast gradient sign method goes through the frozen original l_o. It gives the image
    x' = round(clip(x + eps sign(grad_x CE(l_o(x), y)), 0, 1) to 1/255). Its class y' = argmax l_o(x') is the nearest
    wrong class. The loss is CE(l(x), y'). The attack works on pixels in [0, 1], because normalisation is part of the
    model. If the attack fails, y' = y teaches the class again, so the share of successful attacks is logged. The
    defaults are from DELETE's code. The original paper has SGD 1e-5, 10 epochs, batches of 64 and no augmentation, so
    that y' is the same in every epoch.
    """

    name: ClassVar[str] = "boundary-shrink"
    paper: ClassVar[str] = "Boundary Unlearning (Chen et al., CVPR 2023)"
    cost: ClassVar[str] = "20 epochs of forget images, an attack in each step"

    epsilon: float = option(0.1, "Size of the attack's step, in pixels of 0 to 1.", above=0, most=1)

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Attack, relabel, train."""
        request.forget.check_unit(self.name)
        original = frozen_copy(model, run)
        forgotten = forgotten_classes(model, request)
        # The counts stay on the device, because reading a number in a step would stop a captured graph.
        tally = torch.zeros(2, device=run.torch_device)

        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            images = to_unit(images)
            attacked = attack(original, images, labels, epsilon=self.epsilon)
            with torch.no_grad():
                nearest = nearest_class(scores_of(original(attacked)), labels, forgotten)
                tally[0] += (nearest != labels).sum()
                tally[1] += len(labels)
            return F.cross_entropy(scores_of(student(images)), nearest)

        self.train_on_forget(model, objective, request, run, teacher=original)
        run.log(run.steps, attack_success=(tally[0] / tally[1]).item())
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model


def nearest_class(scores: Tensor, labels: Tensor, forgotten: Sequence[int]) -> Tensor:
    """Return the class with the highest score, without the `forgotten` classes except the image's label.

    If two classes are forgotten together, neither may be the training label of the other's images.
    """
    columns = torch.arange(scores.shape[1], device=scores.device)
    excluded = is_among(columns, forgotten)
    return scores.masked_fill(excluded & (columns != labels[:, None]), -torch.inf).argmax(dim=1)


def attack(model: nn.Module, images: Tensor, labels: Tensor, *, epsilon: float) -> Tensor:
    """Return the images after one step of the fast gradient sign method: multiples of 1/255 in [0, 1].

    Examples:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3))
        >>> attacked = attack(model, torch.rand(2, 1, 2, 2), torch.tensor([0, 1]), epsilon=0.1)
        >>> bool(((0 <= attacked) & (attacked <= 1)).all())
        True
    """
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_(True)
        # The sum keeps the gradient of each image independent of the number of images.
        loss = F.cross_entropy(scores_of(model(pixels)).float(), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, pixels)
    moved = (images + epsilon * gradient.sign()).clamp(0, 1)
    return (moved * _PIXEL).round() / _PIXEL
