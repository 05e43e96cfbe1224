"""Fine-tuning on the retained images, and waiting for the class to fade."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.training.loop import BatchNormMode, classification_loss
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
    """Go on training on the retained images; the class fades because no image asks for it.

    min CE(W theta(x), y) over D_r, all layers. Only the softmax's pressure on the missing class's score makes the
    network forget, so a small learning rate does next to nothing: 1e-4, which some comparisons use, is too slow. The
    defaults are those of Unlearn-Sparse (lr 0.01, 10 epochs, batch 256, weight decay 5e-4). BatchNorm trains, which
    moves its statistics to the retained images, where they belong.
    """

    name: ClassVar[str] = "finetune"
    paper: ClassVar[str] = "baseline; defaults of Unlearn-Sparse (Jia et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "10 epochs on retained images"

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

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` on the retained images."""
        batches = request.retain.training(run, batch_size=self.batch_size, augment=self.augment)
        self.train(model, batches, classification_loss, run)
        return model
