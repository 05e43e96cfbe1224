"""FCS: alternate contrastive passes on forget images with passes on retained images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import from_epoch, side_by_side
from pour.unlearning.toolkit.teachers import divergence, unmasked

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Fcs", "contrast"]

_LOWEST_CONTRAST_RATE = 1e-6


@register
@dataclass(kw_only=True)
class Fcs(IterativeMethod):
    """Flatten the forget images' predictions, then alternate a contrastive pass on them with a pass on retained ones.

    The first pass over D_f minimises KL(uniform || softmax(F)). Then each of the `epochs` rounds has two passes. One
    minimises -mean log softmax_r(F R^T / tau) over pairs of a forget batch's scores F and a retained batch's scores R,
    which are not trained, with one step per batch of D_f. The other minimises CE over D_r. The contrastive term has no
    positive pair: it is lowest when each forget image is equally similar to all retained images.

    Three SGD optimisers keep their own momentum. The first two have the rates 5e-3 and 3e-4, without weight decay. The
    second rate falls along a cosine to 1e-6. The third trains on retained images with `lr` and `weight_decay`. Its
    rate is 1e-3 for every 64 images of a batch, so change it with `batch_size`. The defaults won the NeurIPS 2023
    challenge: tau 1.15, 8 rounds, batch 256, no augmentation, weight decay 1e-2 (twenty times the value in
    training). They were tuned for random subsets of faces, and Deep Unlearn searches them again. BatchNorm trains,
    because every round ends on retained images.
    """

    name: ClassVar[str] = "fcs"
    paper: ClassVar[str] = "NeurIPS 2023 unlearning challenge; Deep Unlearn (Cadet et al., 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "8 epochs on retained images and 9 on forget images"
    whole_epochs: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "flatten_lr", "contrast_lr")

    flatten_lr: float = option(5e-3, "Learning rate of the first pass, towards uniform predictions.", above=0)
    contrast_lr: float = option(3e-4, "Highest learning rate of the contrastive passes.", above=0)
    temperature: float = option(1.15, "Temperature tau of the contrastive passes.", above=0)
    lr: float | None = option(4e-3, "Learning rate of the passes over retained images.")
    epochs: int | None = option(8, "Number of rounds: a contrastive pass and a pass over the retained images.")
    steps: int | None = option(None, "Not used; set epochs.")
    batch_size: int = option(256, "Number of images per step, of each kind.")
    weight_decay: float = 1e-2
    augment: bool = False
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train (each round ends on retained images), or frozen."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` round by round."""
        forget, retain = self.loaders(run, request.forget, request.retain)
        pairs = side_by_side(forget, retain, length=min(len(forget), len(retain)))
        without_masked = unmasked(model, run)

        def flatten(student: nn.Module, images: Tensor, _: Tensor) -> Tensor:
            scores = without_masked(scores_of(student(to_unit(images))))
            return divergence(torch.zeros_like(scores), scores)

        def contrastive(
            student: nn.Module, forget_images: Tensor, _: Tensor, retain_images: Tensor, __: Tensor
        ) -> Tensor:
            others = without_masked(scores_of(student(to_unit(retain_images)))).detach()
            scores = without_masked(scores_of(student(to_unit(forget_images))))
            return contrast(scores, others, temperature=self.temperature)

        rounds = self.epochs or 0
        against = self.optimizer_for(model, run, weight_decay=0.0)
        towards = self.optimizer_for(model, run)
        self.train(model, forget, flatten, run, epochs=1, lr=self.flatten_lr, weight_decay=0.0)
        for number in range(rounds):

            def rate(step: int, start: int = number * len(pairs)) -> float:
                return cosine(self.contrast_lr, (start + step) / (rounds * len(pairs)))

            later = from_epoch(pairs, number + 1)
            self.train(model, later, contrastive, run, rate=rate, optimizer=against, epochs=1)
            later = from_epoch(retain, rounds + 1 + number)
            self.train(model, later, classification_loss, run, optimizer=towards, epochs=1)
        return model


def contrast(forget: Tensor, retain: Tensor, *, temperature: float) -> Tensor:
    """Return -mean of log softmax over the retained images of F R^T / tau, for scores F (m, C) and R (n, C).

    Its lowest value is log n, reached if every forget image is equally similar to all retained images.

    Examples:
        >>> scores = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
        >>> contrast(scores, torch.ones(4, 2), temperature=1.0).item()
        1.3862...
    """
    forget, retain = forget.float().flatten(1), retain.float().flatten(1)
    # Similarities are products of scores, whose differences are lost in half precision.
    with torch.autocast(forget.device.type, enabled=False):
        similarity = forget @ retain.T / temperature
    return -F.log_softmax(similarity, dim=1).mean()


def cosine(peak: float, progress: float) -> float:
    """Return the learning rate of the contrastive passes after a share `progress` of all their steps."""
    lowest = min(_LOWEST_CONTRAST_RATE, peak)
    return lowest + (peak - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
