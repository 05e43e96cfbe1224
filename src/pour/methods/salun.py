"""SalUn: random labels, with only the weights that matter to the forget set allowed to move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import InTurn, Relabelled
from pour.unlearning.toolkit.kept_optimizer import optimizer_for

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["SalUn", "saliency_mask"]


@register
@dataclass(kw_only=True)
class SalUn(IterativeMethod):
    """Random labels for the forget images, moving only the weights whose gradient there is largest.

    The mask keeps the ``share`` of all weights with the largest |sum of the gradients of CE over D_f's batches|, taken
    in evaluation mode. Each epoch is a pass over D_f with labels drawn anew from all classes (but those forgotten
    before) and then one over D_r with its own labels, min CE in both. Masking the gradient alone would let momentum and
    weight decay move the other weights, so these are put back after every step and end bit for bit as they began.

    Defaults of the authors' code (share 0.5, lr 0.013, 10 epochs, batch 256, weight decay 5e-4), which are for random
    subsets; for whole classes they search the rate from 1e-4 to 1e-1. On CIFAR-100 theirs is one pass over a mixture of
    both, which is not offered. BatchNorm trains, since every epoch ends on
    retained images; its running statistics are not masked.
    """

    name: ClassVar[str] = "salun"
    paper: ClassVar[str] = "SalUn (Fan et al., ICLR 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "10 epochs on all images"

    share: float = 0.5
    """The share of the weights that may move."""
    lr: float | None = 0.013
    """The highest learning rate."""
    epochs: int | None = 10
    """Passes over forget and retained images; give these or steps."""
    batch_size: int = 256
    """Images to a step."""
    weight_decay: float = 5e-4
    """Pull of the weights that may move to zero."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, each epoch ending on retained images, or frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise UsageError(f"share must be above 0 and at most 1, but is {self.share}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Find the weights that matter, then relabel."""
        forget, retain = (
            as_epochs(images.training(run, batch_size=self.batch_size, augment=self.augment, salt=salt), run)
            for salt, images in enumerate((request.forget, request.retain))
        )
        optimizer = optimizer_for(model, self.recipe(), run)
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        images = request.forget.once(run, batch_size=self.batch_size)
        mask = saliency_mask(model.eval(), trained, images, self.share)
        start = [parameter.detach().clone() for parameter in trained]

        def put_back(*_: Any) -> None:
            with torch.no_grad():
                for parameter, free, old in zip(trained, mask, start, strict=True):
                    parameter.copy_(torch.where(free, parameter, old))

        gone = forgotten_before(model)
        choices = [label for label in range(find_head(model).num_classes) if label not in gone]
        random_labels = Relabelled(forget, choices, run.seed)
        handle = optimizer.register_step_post_hook(put_back)
        self.train(model, InTurn([(random_labels, ()), (retain, ())]), classification_loss, run, optimizer=optimizer)
        handle.remove()
        return model


def saliency_mask(
    model: nn.Module, parameters: Sequence[nn.Parameter], batches: Iterable[tuple[Tensor, Tensor]], share: float
) -> list[Tensor]:
    """Where the summed gradient of the cross-entropy is among the largest ``share``, one mask to a parameter."""
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for images, labels in batches:
        device = parameters[0].device
        loss = classification_loss(model, images.to(device), labels.to(device))
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        seen = [(sum_, gradient) for sum_, gradient in zip(total, found, strict=True) if gradient is not None]
        torch._foreach_add_([sum_ for sum_, _ in seen], [gradient for _, gradient in seen])
    sizes = torch.cat([gradient.abs().flatten() for gradient in total])
    chosen = torch.zeros_like(sizes, dtype=torch.bool)
    chosen[sizes.topk(max(1, round(share * len(sizes)))).indices] = True
    pieces = torch.split(chosen, [gradient.numel() for gradient in total])
    return [piece.view(gradient.shape) for piece, gradient in zip(pieces, total, strict=True)]
