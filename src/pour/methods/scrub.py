"""SCRUB: away from the teacher on forget images, back to it on retained ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode, as_epochs
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import InTurn
from pour.unlearning.toolkit.teachers import divergence, frozen_copy

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Scrub"]


@register
@dataclass(kw_only=True)
class Scrub(IterativeMethod):
    """Alternate passes away from the original on forget images and back to it on retained images.

    In each of the first ``ascent_epochs`` epochs, max KL_T(original || student) over D_f; in every epoch after that
    min gamma CE + alpha KL_T(original || student) over D_r, with KL_T = T^2 KL at temperature T, averaged over the
    batch. One optimiser does both. The defaults are the authors' for CIFAR-10 (gamma 0.99, alpha 0.001, T 4, 2 ascents
    in 3 epochs, lr 5e-4, weight decay 5e-4; their rate falls to a tenth after epochs 3, 5 and 9, which is beyond these
    and left out) with their batch of 512 for whole classes: the forget batch decides how
    many ascents there are, and is the main knob. BatchNorm trains: each ascent fills its statistics with the forgotten
    class, and the pass over retained images that always follows repairs them.
    """

    name: ClassVar[str] = "scrub"
    paper: ClassVar[str] = "SCRUB (Kurmanji et al., NeurIPS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "3 epochs on retained images and 2 on forget images"

    gamma: float = 0.99
    """Weight of the cross-entropy on retained images."""
    alpha: float = 0.001
    """Weight of the distance to the original on retained images."""
    temperature: float = 4.0
    """T of the distance."""
    ascent_epochs: int = 2
    """How many of the epochs begin with a pass over the forget images."""
    forget_batch_size: int = 512
    """Forget images to a step."""
    lr: float | None = 5e-4
    """The highest learning rate."""
    epochs: int | None = 3
    """Passes over the retained images."""
    steps: int | None = None
    """Not used: give epochs."""
    weight_decay: float = 5e-4
    """Pull of the weights to zero."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, repaired by each pass over retained images, or frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None:
            raise UsageError("scrub goes by whole passes over the images; give epochs, not steps.")
        if not 0 <= self.ascent_epochs <= self.epochs:
            raise UsageError(f"ascent_epochs must be 0 to epochs ({self.epochs}), but is {self.ascent_epochs}.")
        if not self.temperature > 0:
            raise UsageError(f"The temperature must be above 0, but is {self.temperature}.")
        if self.gamma < 0 or self.alpha < 0 or self.forget_batch_size < 1:
            raise UsageError(
                "gamma and alpha must not be negative and forget_batch_size at least 1, but they are "
                f"{self.gamma}, {self.alpha} and {self.forget_batch_size}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model``, the student, against a frozen copy of itself."""
        teacher = frozen_copy(model, run)
        retain, forget = (
            as_epochs(images.training(run, batch_size=size, augment=self.augment, salt=salt), run)
            for salt, (images, size) in enumerate(
                ((request.retain, self.batch_size), (request.forget, self.forget_batch_size))
            )
        )
        # Each batch carries the weights of its two losses, so that one objective (and one graph) serves both phases.
        away, back = (forget, (torch.tensor([0.0, -1.0]),)), (retain, (torch.tensor([self.gamma, self.alpha]),))
        ascents, rest = self.ascent_epochs, (self.epochs or 0) - self.ascent_epochs

        def objective(student: nn.Module, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
            images = to_unit(images)
            with torch.no_grad():
                target = scores_of(teacher(images))
            answer = scores_of(student(images))
            distance = divergence(target, answer, temperature=self.temperature)
            return weights[0] * F.cross_entropy(answer, labels) + weights[1] * distance

        self.train(model, InTurn([away, back] * ascents + [back] * rest), objective, run, epochs=1)
        return model
