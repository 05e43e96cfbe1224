"""Fine-tuning on the retained images alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.training.loop import BatchNormMode, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Finetune"]


@register
@dataclass(kw_only=True)
class Finetune(IterativeMethod):
    """Continue training on the retained images, so that the forgotten class is never a target.

    The loss is CE(W theta(x), y) over D_r, for all layers. The network forgets only because the softmax lowers the
    score of the missing class. So a small learning rate has hardly any effect: 1e-4, which some comparisons use, is too
    slow. The defaults are from Unlearn-Sparse (lr 0.01, 10 epochs, batch 256, weight decay 5e-4). BatchNorm trains, so
    its statistics follow the retained images.
    """

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "baseline; defaults of Unlearn-Sparse (Jia et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    several_heads: ClassVar[bool] = True
    cost: ClassVar[str] = "10 epochs on retained images"

    lr: float | None = 0.01
    epochs: int | None = option(10, "Number of passes over the retained images; set these or steps.")
    batch_size: int = 256
    weight_decay: float = 5e-4
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train to let them follow the retained images, or frozen."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` on the retained images."""
        self.train(model, self.loaders(run, request.retain)[0], classification_loss, run)
        return model
