"""Fine-tuning towards sparse weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.projecting.projected_head import is_masked
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Stamped

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["L1Sparse"]


@register
@dataclass(kw_only=True)
class L1Sparse(IterativeMethod):
    """Fine-tune on the retained images with an l1 penalty on the weights that fades to nothing.

    min CE over D_r + alpha_t |params|_1 with alpha_t = alpha max(0, 1 - t / (T - T_0)): t counts steps, T is their
    number and the last T_0 (``plain_epochs``) are plain fine-tuning. lr 0.01 and 10 epochs come from the authors'
    code, where alpha's printed default of 0.2 belongs to another method and would wipe the network out; values that
    work are 1e-4 to 1e-3. The penalty adds to the logged loss. BatchNorm trains on the retained images.
    """

    name: ClassVar[str] = "l1-sparse"
    paper: ClassVar[str] = "Unlearn-Sparse (Jia et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "10 epochs on retained images"

    alpha: float = 5e-4
    """Weight of the penalty at the first step."""
    plain_epochs: int = 0
    """Passes at the end without penalty."""
    lr: float | None = 0.01
    """The highest learning rate."""
    epochs: int | None = 10
    """Passes over the retained images; give these or steps."""
    batch_size: int = 256
    """Images to a step."""
    weight_decay: float = 5e-4
    """Pull of the weights to zero."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train to let them follow the retained images, or frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.plain_epochs < 0:
            raise UsageError(
                f"alpha and plain_epochs must not be negative, but are {self.alpha} and {self.plain_epochs}."
            )
        if self.epochs is not None and self.plain_epochs >= self.epochs:
            raise UsageError(
                f"plain_epochs must leave some of the {self.epochs} epochs to the penalty, but is {self.plain_epochs}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` on the retained images."""
        retained = as_epochs(request.retain.training(run, batch_size=self.batch_size, augment=self.augment), run)
        total = self.recipe().total_steps(len(retained))
        penalised = max(1, total - self.plain_epochs * len(retained))
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        bias = find_head(model).layer.bias
        masked = is_masked(bias.detach()).to(run.torch_device) if isinstance(bias, Tensor) else None

        def size_of(parameter: Tensor) -> Tensor:
            # The bias of a masked class is a mark, beside whose size all other weights are nothing.
            held = parameter if masked is None or parameter is not bias else parameter.masked_fill(masked, 0)
            return held.abs().sum()

        def objective(student: nn.Module, images: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
            size = torch.stack([size_of(parameter) for parameter in trained]).sum()
            return classification_loss(student, images, labels) + weight * size

        batches = Stamped(retained, lambda step: self.alpha * max(0.0, 1 - step / penalised))
        self.train(model, batches, objective, run)
        return model
