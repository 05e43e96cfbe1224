"""SCRUB: train away from the original on forget images, and towards it on retained images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import in_sequence
from pour.unlearning.toolkit.teachers import divergence, frozen_copy

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Scrub"]


@register
@dataclass(kw_only=True)
class Scrub(IterativeMethod):
    """Alternate passes away from the original on forget images and towards it on retained images.

    Each of the first `ascent_epochs` epochs maximises KL_T(original || student) over D_f. Every epoch then minimises
    gamma CE + alpha KL_T(original || student) over D_r. KL_T is T^2 KL at temperature T, averaged over the batch. One
    optimiser does both. The defaults are the authors' for CIFAR-10 (gamma 0.99, alpha 0.001, T 4, 2 ascents
    in 3 epochs, lr 5e-4, weight decay 5e-4) with their batch of 512 for whole classes. Their rate falls to a tenth
    after epochs 3, 5 and 9, so it is constant here. The forget batch size decides the number of ascents and is the most
    important option. BatchNorm trains: each ascent fills its statistics with the forgotten class, and the following
    pass over retained images repairs them.
    """

    name: ClassVar[str] = "scrub"
    paper: ClassVar[str] = "SCRUB (Kurmanji et al., NeurIPS 2023)"
    whole_epochs: ClassVar[bool] = True
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "3 epochs on retained images and 2 on forget images"

    gamma: float = option(0.99, "Weight of the cross-entropy on retained images.", least=0)
    alpha: float = option(0.001, "Weight of the distance to the original on retained images.", least=0)
    temperature: float = option(4.0, "Temperature T of the distance.", above=0)
    ascent_epochs: int = option(2, "Number of epochs that begin with a pass over the forget images.", least=0)
    forget_batch_size: int = option(512, "Number of forget images per step.", least=1)
    lr: float | None = 5e-4
    epochs: int | None = option(3, "Number of passes over the retained images.")
    steps: int | None = option(None, "Not used; set epochs.")
    weight_decay: float = 5e-4
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train (repaired by each pass over retained images), or frozen."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ascent_epochs > (self.epochs or 0):
            raise UsageError(f"ascent_epochs must be 0 to epochs ({self.epochs}), but is {self.ascent_epochs}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model`, the student, against a frozen copy of itself."""
        teacher = frozen_copy(model, run)
        sizes = (self.batch_size, self.forget_batch_size)
        retain, forget = self.loaders(run, request.retain, request.forget, sizes=sizes)
        # Each batch contains the weights of its two losses, so that one objective (and one graph) serves both phases.
        away, back = (forget, (torch.tensor([0.0, -1.0]),)), (retain, (torch.tensor([self.gamma, self.alpha]),))
        ascents, rest = self.ascent_epochs, (self.epochs or 0) - self.ascent_epochs

        def objective(student: nn.Module, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
            images = to_unit(images)
            with torch.no_grad():
                target = scores_of(teacher(images))
            answer = scores_of(student(images))
            distance = divergence(target, answer, temperature=self.temperature)
            return weights[0] * F.cross_entropy(answer, labels) + weights[1] * distance

        self.train(model, in_sequence([away, back] * ascents + [back] * rest), objective, run, epochs=1)
        return model
