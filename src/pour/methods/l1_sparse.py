"""L1-sparse: fine-tuning towards sparse weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.projecting.projected_head import is_masked
from pour.training.loop import BatchNormMode, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import with_step_value

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["L1Sparse"]


@register
@dataclass(kw_only=True)
class L1Sparse(IterativeMethod):
    """Fine-tune on the retained images with an l1 penalty on the weights, whose factor decreases to zero.

    The loss is CE over D_r + alpha_t |params|_1 with alpha_t = alpha max(0, 1 - t / (T - T_0)). Here t is the step and
    T the number of steps. The last T_0 steps (`plain_epochs`) are plain fine-tuning. lr 0.01 and 10 epochs are from
    the authors' code. Its printed default of alpha, 0.2, belongs to another method and would destroy the network;
    values from 1e-4 to 1e-3 work. The logged loss includes the penalty. BatchNorm trains on the retained images.
    """

    name: ClassVar[str] = "l1-sparse"
    paper: ClassVar[str] = "Unlearn-Sparse (Jia et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "10 epochs on retained images"

    alpha: float = option(5e-4, "Weight of the penalty at the first step.", least=0)
    plain_epochs: int = option(0, "Number of passes at the end without penalty.", least=0)
    lr: float | None = 0.01
    epochs: int | None = option(10, "Number of passes over the retained images; set these or steps.")
    batch_size: int = 256
    weight_decay: float = 5e-4
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train to let them follow the retained images, or frozen."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None and self.plain_epochs >= self.epochs:
            raise UsageError(
                f"plain_epochs must leave some of the {self.epochs} epochs to the penalty, but is {self.plain_epochs}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` on the retained images."""
        (retained,) = self.loaders(run, request.retain)
        total = self.as_recipe().total_steps(len(retained))
        penalised = max(1, total - self.plain_epochs * len(retained))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        bias = getattr(find_head(model).layer, "bias", None)
        masked = is_masked(bias.detach()).to(run.torch_device) if isinstance(bias, Tensor) else None

        def size_of(parameter: Tensor) -> Tensor:
            # The bias of a masked class is so large that all other weights are lost in rounding.
            counted = parameter if masked is None or parameter is not bias else parameter.masked_fill(masked, 0)
            return counted.abs().sum()

        def objective(student: nn.Module, images: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            size = torch.stack([size_of(parameter) for parameter in trained]).sum()
            return classification_loss(student, images, labels) + weight * size

        batches = with_step_value(retained, lambda step: self.alpha * max(0.0, 1 - step / penalised))
        self.train(model, batches, objective, run)
        return model
