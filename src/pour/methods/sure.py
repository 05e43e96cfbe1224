"""SURE: features of forget images that a domain classifier cannot tell from those of unseen images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.output import scores_of
from pour.models.tap import tap_features, to_unit
from pour.training.loop import BatchNormMode, as_epochs
from pour.training.step import trainable
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Stamped, Together
from pour.unlearning.toolkit.features import pool_features

if TYPE_CHECKING:
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Sure", "reverse_gradient"]


@register
@dataclass(kw_only=True)
class Sure(IterativeMethod):
    """Make forget images' features look like those of unseen images, against a domain classifier.

    min over the network of CE(D_r) - lambda L_dom and over the classifier phi of L_dom, the binary cross-entropy of
    phi(theta(x)) on forget images (1) against validation images (0); one backward pass does both, the gradient being
    reversed between features and phi. lambda rises as s (2 / (1 + exp(-10 p)) - 1) over the run's share p.

    No code and no pseudo-code was published: the classifier (d - 256 - 1), the rise, lr 0.01 and 10 epochs are the
    usual choices of domain adaptation, not the authors'. Validation images should be such as the original was not
    trained on. Data without any of their own have a tenth of the training images held out for it, which the original
    has seen, as one that is deployed has; SURE then trains on the other nine tenths. For a whole class they should be
    of retained classes, which makes the class look like something else (the request made from splits holds these);
    held-out images of the class itself would only make it look unseen, and be kept. BatchNorm
    trains: normalising each batch anew bounds the reversed gradient, which otherwise diverges at this rate.
    """

    name: ClassVar[str] = "sure"
    paper: ClassVar[str] = "SURE (Sepahvand et al., ICLR 2025)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain", "validation")
    cost: ClassVar[str] = "10 epochs on retained images, three times the work"

    strength: float = 1.0
    """s, the weight of the reversed gradient at the end."""
    width: int = 256
    """Hidden units of the domain classifier."""
    lr: float | None = 0.01
    """The highest learning rate, of network and domain classifier."""
    epochs: int | None = 10
    """Passes over the retained images; give these or steps."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, which keeps the reversal in bounds, or frozen, with a smaller lr."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strength < 0 or self.width < 1:
            raise UsageError(
                f"strength must not be negative and width at least 1, but they are {self.strength} and {self.width}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` and a domain classifier against each other."""
        # The classifier's parameters would hide that the model has none to train.
        trainable(model)
        retain, forget, validation = (
            as_epochs(images.training(run, batch_size=self.batch_size, augment=self.augment, salt=salt), run)
            for salt, images in enumerate((request.retain, request.forget, request.validation))
        )
        together = Together(retain, forget, validation, length=len(retain))
        total = self.recipe().total_steps(len(together))
        head = find_head(model)
        adversaries = _Adversaries(model, head.num_features, self.width)

        with tap_features(model, head) as tap:

            def objective(
                pair: nn.Module,
                kept: Tensor,
                names: Tensor,
                gone: Tensor,
                _: Tensor,
                unseen: Tensor,
                __: Tensor,
                reversal: Tensor,
            ) -> Tensor:
                scores = scores_of(pair(to_unit(kept)))
                pair(torch.cat([to_unit(gone), to_unit(unseen)]))
                features = reverse_gradient(pool_features(tap.features, head.dim).float(), reversal)
                domain = torch.cat([features.new_ones(len(gone)), features.new_zeros(len(unseen))])
                told = adversaries.domain(features).squeeze(1)
                return F.cross_entropy(scores, names) + F.binary_cross_entropy_with_logits(told.float(), domain)

            batches = Stamped(together, lambda step: self.strength * ramp(step / total))
            self.train(adversaries, batches, objective, run)
        return model


class _Adversaries(nn.Module):
    """The network and the classifier that watches its features, in one module so that one optimiser has both."""

    def __init__(self, network: nn.Module, num_features: int, width: int) -> None:
        super().__init__()
        self.network = network
        self.domain = nn.Sequential(nn.Linear(num_features, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, images: Tensor) -> Any:
        return self.network(images)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        return -weight * gradients[0], None


def reverse_gradient(features: Tensor, weight: Tensor) -> Tensor:
    """The features as they are; their gradient comes back times -weight.

    Example:
        >>> features = torch.ones(2, requires_grad=True)
        >>> reverse_gradient(features, torch.tensor(0.5)).sum().backward()
        >>> features.grad
        tensor([-0.5000, -0.5000])
    """
    reversed_features: Tensor = _Reversed.apply(features, weight)  # type: ignore[no-untyped-call]
    return reversed_features


def ramp(progress: float) -> float:
    """How lambda rises, from 0 to nearly 1: 2 / (1 + exp(-10 p)) - 1."""
    return 2 / (1 + math.exp(-10 * progress)) - 1
