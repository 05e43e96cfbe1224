"""SalUn: random labels, with changes only to the weights that matter to the forget set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.training.loop import BatchNormMode, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import in_sequence, with_random_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["SalUn", "saliency_mask"]


@register
@dataclass(kw_only=True)
class SalUn(IterativeMethod):
    """Train forget images on random labels, and change only the weights whose gradient on them is largest.

    The mask selects the `share` of all weights with the largest |sum of the gradients of CE over D_f's batches|, in
    evaluation mode. Each epoch is a pass over D_f and then a pass over D_r, with the loss CE. The labels of D_f are
    drawn again in every epoch, from all classes that earlier requests did not forget. D_r has its true labels. If only
    the gradient were masked, momentum and weight decay would change the other weights. So the other weights are reset
    after every step and do not change by a single bit.

    The defaults are from the authors' code for random subsets (share 0.5, lr 0.013, 10 epochs, batch 256, weight decay
    5e-4). For whole classes the authors search the rate from 1e-4 to 1e-1. Their single pass over a mixture of both
    sets, for CIFAR-100, is not implemented. BatchNorm trains, because every epoch ends on retained images. Its running
    statistics are not masked.
    """

    name: ClassVar[str] = "salun"
    paper: ClassVar[str] = "SalUn (Fan et al., ICLR 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    several_heads: ClassVar[bool] = True
    cost: ClassVar[str] = "10 epochs on all images"

    share: float = option(0.5, "Share of the weights that may move.", above=0, most=1)
    lr: float | None = 0.013
    epochs: int | None = option(10, "Number of passes over forget and retained images; set these or steps.")
    batch_size: int = 256
    weight_decay: float = option(5e-4, "Strength of the pull towards zero of the weights that may move.")
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train (each epoch ends on retained images), or frozen."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Select the weights that matter, then train on random labels."""
        forget, retain = self.loaders(run, request.forget, request.retain)
        optimizer = self.optimizer_for(model, run)
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        images = request.forget.once(run, batch_size=self.batch_size)
        mask = saliency_mask(model.eval(), trained, images, self.share)
        start = [parameter.detach().clone() for parameter in trained]

        def put_back(*_: Any) -> None:
            with torch.no_grad():
                for parameter, free, old in zip(trained, mask, start, strict=True):
                    parameter.copy_(torch.where(free, parameter, old))

        earlier = forgotten_before(model)
        choices = [label for label in range(find_head(model).num_classes) if label not in earlier]
        batches = in_sequence([(with_random_labels(forget, choices, run.seed), ()), (retain, ())])
        with optimizer.register_step_post_hook(put_back):
            self.train(model, batches, classification_loss, run, optimizer=optimizer)
        return model


def saliency_mask(
    model: nn.Module, parameters: Sequence[nn.Parameter], batches: Iterable[tuple[Tensor, Tensor]], share: float
) -> list[Tensor]:
    """Return one mask per parameter. It selects the `share` of all weights with the largest summed gradient."""
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for images, labels in batches:
        device = parameters[0].device
        loss = classification_loss(model, images.to(device), labels.to(device))
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        used = [(sum_, gradient) for sum_, gradient in zip(total, gradients, strict=True) if gradient is not None]
        torch._foreach_add_([sum_ for sum_, _ in used], [gradient for _, gradient in used])
    sizes = torch.cat([gradient.abs().flatten() for gradient in total])
    mask = torch.zeros_like(sizes, dtype=torch.bool)
    mask[sizes.topk(max(1, round(share * len(sizes)))).indices] = True
    pieces = torch.split(mask, [gradient.numel() for gradient in total])
    return [piece.view(gradient.shape) for piece, gradient in zip(pieces, total, strict=True)]
