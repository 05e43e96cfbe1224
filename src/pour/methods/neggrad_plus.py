"""NegGrad+: descent on the retained images against ascent on the forget images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from pour.errors import UsageError
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Together

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["NegGradPlus"]


@register
@dataclass(kw_only=True)
class NegGradPlus(IterativeMethod):
    """Descend on the retained images and, with a small weight, ascend on the forget images.

    min alpha CE(D_r) - (1 - alpha) CE(D_f), forget batches beginning again for as long as retained ones last. alpha
    0.95, lr 0.01, 10 epochs and batch 256 are the values of the SCRUB paper's comparison and of Deep Unlearn. The
    second term has no floor; the divergence guard stops a run whose loss runs away. BatchNorm trains, as in the SCRUB
    code: normalising each batch anew bounds the ascent, which otherwise diverges at this rate, at the price of running
    statistics that are half the forgotten class's. Deep Unlearn freezes it (``batch_norm="frozen"``) and searches the
    rate.
    """

    name: ClassVar[str] = "neggrad-plus"
    paper: ClassVar[str] = "SCRUB (Kurmanji et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "10 epochs on retained images, twice the work"

    alpha: float = 0.95
    """Weight of the retained images, 0 to 1; the forget images have the rest."""
    lr: float | None = 0.01
    """The highest learning rate."""
    epochs: int | None = 10
    """Passes over the retained images; give these or steps."""
    batch_size: int = 256
    """Images to a step, of either kind."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, which keeps the ascent in bounds, or frozen, with a smaller lr."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise UsageError(f"alpha is a share, 0 to 1, but is {self.alpha}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` on both kinds side by side."""
        retain, forget = (
            as_epochs(images.training(run, batch_size=self.batch_size, augment=self.augment, salt=salt), run)
            for salt, images in enumerate((request.retain, request.forget))
        )

        def objective(student: nn.Module, kept: Tensor, names: Tensor, gone: Tensor, old_names: Tensor) -> Tensor:
            keep = classification_loss(student, kept, names)
            return self.alpha * keep - (1 - self.alpha) * classification_loss(student, gone, old_names)

        self.train(model, Together(retain, forget, length=len(retain)), objective, run)
        return model
