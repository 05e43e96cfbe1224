"""FCS: forget by contrast, then fine-tune, round by round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Later, Together
from pour.unlearning.toolkit.kept_optimizer import optimizer_for
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

    First one pass over D_f with min KL(uniform || softmax(F)). Then ``epochs`` rounds, each of two passes:
    min -mean log softmax_r(F R^T / tau) over pairs of a forget batch's scores F and a retained batch's scores R, which
    are not trained, for as many steps as D_f has batches; and min CE over D_r. The contrastive term has no positive
    pair: it is lowest when each forget image is equally similar to all retained ones.

    Three SGD optimisers keep their own momentum: lr 5e-3 and 3e-4 without weight decay for the first two, the latter
    falling along a cosine over all its steps to 1e-6, and ``lr`` with ``weight_decay`` for the retained images (1e-3
    for every 64 images of a batch: change it with ``batch_size``). tau 1.15, 8 rounds, batch 256, no augmentation and
    the weight decay of 1e-2, twenty times that of training, are the winning entry's of the NeurIPS 2023 challenge,
    tuned there for random subsets of faces; Deep Unlearn searches them anew. BatchNorm trains, and every round ends on
    retained images.
    """

    name: ClassVar[str] = "fcs"
    paper: ClassVar[str] = "NeurIPS 2023 unlearning challenge; Deep Unlearn (Cadet et al., 2024)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "8 epochs on retained images and 9 on forget images"
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "flatten_lr", "contrast_lr")

    flatten_lr: float = 5e-3
    """Learning rate of the first pass, towards uniform predictions."""
    contrast_lr: float = 3e-4
    """Highest learning rate of the contrastive passes."""
    temperature: float = 1.15
    """tau of the contrastive passes."""
    lr: float | None = 4e-3
    """Learning rate of the passes over retained images."""
    epochs: int | None = 8
    """Rounds of a contrastive pass and a pass over the retained images."""
    steps: int | None = None
    """Not used: give epochs."""
    batch_size: int = 256
    """Images to a step, of either kind."""
    weight_decay: float = 1e-2
    """Pull of the weights to zero in the passes over retained images."""
    augment: bool = False
    """Random crops and flips of the images."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, each round ending on retained images, or frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None:
            raise UsageError("fcs goes by whole rounds over the images; give epochs, not steps.")
        if self.schedule != "constant":
            raise UsageError("fcs trains pass by pass, and a schedule would begin anew with each; leave it constant.")
        for name in ("flatten_lr", "contrast_lr", "temperature"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, but is {getattr(self, name)}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` round by round."""
        forget, retain = (
            as_epochs(images.training(run, batch_size=self.batch_size, augment=self.augment, salt=salt), run)
            for salt, images in enumerate((request.forget, request.retain))
        )
        pairs = Together(forget, retain, length=min(len(forget), len(retain)))

        shown = unmasked(model, run)

        def flatten(student: nn.Module, images: Tensor, _: Tensor) -> Tensor:
            scores = shown(scores_of(student(to_unit(images))))
            return divergence(torch.zeros_like(scores), scores)

        def contrastive(student: nn.Module, gone: Tensor, _: Tensor, kept: Tensor, __: Tensor) -> Tensor:
            others = shown(scores_of(student(to_unit(kept)))).detach()
            return contrast(shown(scores_of(student(to_unit(gone)))), others, temperature=self.temperature)

        rounds = self.epochs or 0
        against = optimizer_for(model, self.recipe(weight_decay=0.0), run)
        towards = optimizer_for(model, self.recipe(), run)
        self.train(model, forget, flatten, run, epochs=1, lr=self.flatten_lr, weight_decay=0.0)
        for number in range(rounds):
            start, steps = number * len(pairs), rounds * len(pairs)
            self.train(
                model,
                Later(pairs, number + 1),
                contrastive,
                run,
                rate=lambda step, start=start, steps=steps: cosine(self.contrast_lr, (start + step) / steps),  # type: ignore[misc]
                optimizer=against,
                epochs=1,
            )
            self.train(model, Later(retain, rounds + 1 + number), classification_loss, run, optimizer=towards, epochs=1)
        return model


def contrast(forget: Tensor, retain: Tensor, *, temperature: float) -> Tensor:
    """-mean of log softmax over the retained images of F R^T / tau, for scores F (m, C) and R (n, C).

    Its lowest value is log n, reached when every forget image is equally similar to all retained ones.

    Example:
        >>> scores = torch.tensor([[1.0, 2.0], [0.5, 0.0]])
        >>> contrast(scores, torch.ones(4, 2), temperature=1.0).item()
        1.3862...
    """
    forget, retain = forget.float().flatten(1), retain.float().flatten(1)
    # Similarities are products of scores, too large for half precision to tell apart.
    with torch.autocast(forget.device.type, enabled=False):
        similarity = forget @ retain.T / temperature
    return -F.log_softmax(similarity, dim=1).mean()


def cosine(peak: float, progress: float) -> float:
    """The contrastive passes' learning rate after a share ``progress`` of all their steps."""
    lowest = min(_LOWEST_CONTRAST_RATE, peak)
    return lowest + (peak - lowest) * 0.5 * (1 + math.cos(math.pi * progress))
