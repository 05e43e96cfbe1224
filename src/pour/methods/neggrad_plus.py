"""NegGrad+: descent on the retained images against ascent on the forget images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from pour.training.loop import BatchNormMode, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import side_by_side

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["NegGradPlus"]


@register
@dataclass(kw_only=True)
class NegGradPlus(IterativeMethod):
    """Descend on the retained images and, with a small weight, ascend on the forget images.

    The loss is alpha CE(D_r) - (1 - alpha) CE(D_f). The forget batches are repeated until the retained batches end.
    alpha 0.95, lr 0.01, 10 epochs and batch 256 are the values of the SCRUB paper's comparison and of Deep Unlearn.
    The second term has no minimum, so a run whose loss diverges raises an error. BatchNorm trains, as in the SCRUB
    code: the normalisation of each batch limits the ascent, which otherwise diverges at this rate. The disadvantage:
    half of the running statistics come from the forgotten class. Deep Unlearn freezes BatchNorm
    (`batch_norm="frozen"`) and searches the rate.
    """

    name: ClassVar[str] = "neggrad-plus"
    paper: ClassVar[str] = "SCRUB (Kurmanji et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    several_heads: ClassVar[bool] = True
    cost: ClassVar[str] = "10 epochs on retained images, twice the work"

    alpha: float = option(0.95, "Weight of the retained images; the forget images have the rest.", least=0, most=1)
    lr: float | None = 0.01
    epochs: int | None = option(10, "Number of passes over the retained images; set these or steps.")
    batch_size: int = option(256, "Number of images per step, of each kind.")
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train, which limits the ascent, or frozen, with a smaller lr."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` on both kinds of images side by side."""
        retain, forget = self.loaders(run, request.retain, request.forget)

        def objective(
            student: nn.Module, retain_images: Tensor, retain_labels: Tensor, forget_images: Tensor, labels: Tensor
        ) -> Tensor:
            descent = classification_loss(student, retain_images, retain_labels)
            return self.alpha * descent - (1 - self.alpha) * classification_loss(student, forget_images, labels)

        self.train(model, side_by_side(retain, forget, length=len(retain)), objective, run)
        return model
