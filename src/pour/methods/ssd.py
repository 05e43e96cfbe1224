"""Selective synaptic dampening: shrink the weights that matter more to the forget set than to all data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.data.samples import checked_batch
from pour.errors import UsageError
from pour.models.modes import evaluating
from pour.training.loop import classification_loss
from pour.training.step import trainable
from pour.unlearning.contract import Method, option
from pour.unlearning.registry import register
from pour.unlearning.request import Need

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Ssd", "dampen", "importance"]


@register
@dataclass(kw_only=True)
class Ssd(Method):
    """Shrink every weight that is far more important to the forget images than to all training images.

    Importance is I = mean over batches of (gradient of the batch's mean loss)^2, in evaluation mode. A weight with
    I_f > alpha I_D is multiplied by min(lambda I_D / I_f, 1). Nothing is trained. I is not the Fisher information of
    single images, because the gradient of a whole batch is squared. So I depends on the batch size and on the images
    that share a batch (here all training images, mixed by the seed). If the retained images' gradients have vanished,
    I_f / I_D is about 1 / p^2 with p the share of the forget images, 100 for one class in ten. With a larger alpha no
    weight is selected. The defaults are as published for ResNet-18.
    """

    name: ClassVar[str] = "ssd"
    paper: ClassVar[str] = "SSD (Foster et al., AAAI 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "the gradients of one epoch"

    selection: float = option(
        10.0, "Alpha: a weight is selected if it is this many times more important to the forget images.", above=0
    )
    dampening: float = option(1.0, "Lambda: a selected weight is multiplied by lambda I_D / I_f, at most 1.", above=0)
    batch_size: int = option(128, "Number of images per batch; the importances depend on it.", least=1)

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Measure both importances and dampen."""
        model.to(run.torch_device)
        everything = request.forget.joined(request.retain, run)
        overall = importance(model, everything.once(run, batch_size=self.batch_size))
        forget = importance(model, request.forget.once(run, batch_size=self.batch_size))
        share = dampen(model, forget, overall, selection=self.selection, dampening=self.dampening)
        run.log(0, share_of_weights_dampened=share)
        return model


def importance(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return the mean over batches of each parameter's squared gradient of the batch's mean cross-entropy."""
    parameters = trainable(model)
    total = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    count = 0
    with evaluating(model):
        for images, labels in map(checked_batch, batches):
            place = next(iter(parameters.values())).device
            loss = classification_loss(model, images.to(place), labels.to(place))
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    total[name] += gradient.square()
            count += 1
    if not count:
        raise UsageError("There are no batches to measure importance on.")
    return {name: value / count for name, value in total.items()}


@torch.no_grad()
def dampen(
    model: nn.Module, forget: dict[str, Tensor], overall: dict[str, Tensor], *, selection: float, dampening: float
) -> float:
    """Multiply the selected weights by min(dampening * overall / forget, 1); return their share of all weights."""
    selected = total = 0
    for name, parameter in model.named_parameters():
        if name not in forget:
            continue
        mask = forget[name] > selection * overall[name]
        factor = (dampening * overall[name] / forget[name]).clamp(max=1)
        parameter.copy_(torch.where(mask, parameter * factor, parameter))
        selected += int(mask.sum())
        total += mask.numel()
    return selected / max(total, 1)
