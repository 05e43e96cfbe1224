"""SURE: features of forget images that a domain classifier cannot distinguish from features of unseen images."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.models.head import find_head
from pour.models.output import scores_of
from pour.models.tap import tap_features, to_unit
from pour.training.loop import BatchNormMode
from pour.training.step import trainable
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import side_by_side, with_step_value
from pour.unlearning.toolkit.features import pool_features

if TYPE_CHECKING:
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Sure", "reverse_gradient"]


@register
@dataclass(kw_only=True)
class Sure(IterativeMethod):
    """Train forget images' features until a domain classifier cannot distinguish them from unseen images' features.

    The network minimises CE(D_r) - lambda L_dom, and the domain classifier phi minimises L_dom. L_dom is the binary
    cross-entropy of phi(theta(x)) on forget images (1) against validation images (0). One backward pass computes both
    gradients, because the gradient is reversed between features and phi. lambda is s (2 / (1 + exp(-10 p)) - 1) with p
    the share of the run that is done.

    The authors published neither code nor pseudo-code. The classifier (d - 256 - 1), the rise of lambda, lr 0.01 and 10
    epochs are the usual choices of domain adaptation. The original should not have been trained on the validation
    images. If the data has no validation images, a tenth of the training images is held out, on which the original was
    trained, and SURE trains on the other nine tenths. For a whole class, use validation images of retained classes, so
    that the class looks like another class. A request made from splits contains these. Held-out images of the class
    itself would only make it look unseen. BatchNorm trains: the normalisation of each batch limits the reversed
    gradient, which otherwise diverges at this rate.
    """

    name: ClassVar[str] = "sure"
    paper: ClassVar[str] = "SURE (Sepahvand et al., ICLR 2025)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain", "validation")
    cost: ClassVar[str] = "10 epochs on retained images, three times the work"

    strength: float = option(1.0, "Weight s of the reversed gradient at the end.", least=0)
    width: int = option(256, "Number of hidden units of the domain classifier.", least=1)
    lr: float | None = option(0.01, "Highest learning rate, of network and domain classifier.")
    epochs: int | None = option(10, "Number of passes over the retained images; set these or steps.")
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train, which limits the reversal, or frozen, with a smaller lr."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` and a domain classifier against each other."""
        # Later the classifier's parameters would hide that no parameter of the model can be trained.
        trainable(model)
        retain, forget, validation = self.loaders(run, request.retain, request.forget, request.validation)
        together = side_by_side(retain, forget, validation, length=len(retain))
        total = self.as_recipe().total_steps(len(together))
        head = find_head(model)
        adversaries = _Adversaries(model, head.num_features, self.width)

        with tap_features(model, head) as tap:

            def objective(
                pair: nn.Module,
                retain_images: Tensor,
                labels: Tensor,
                forget_images: Tensor,
                _: Tensor,
                unseen_images: Tensor,
                *others: Tensor,
            ) -> Tensor:
                scores = scores_of(pair(to_unit(retain_images)))
                pair(torch.cat([to_unit(forget_images), to_unit(unseen_images)]))
                features = reverse_gradient(pool_features(tap.features, head.dim).float(), others[-1])
                domain = torch.cat([features.new_ones(len(forget_images)), features.new_zeros(len(unseen_images))])
                answers = adversaries.domain(features).squeeze(1)
                return F.cross_entropy(scores, labels) + F.binary_cross_entropy_with_logits(answers.float(), domain)

            batches = with_step_value(together, lambda step: self.strength * ramp(step / total))
            self.train(adversaries, batches, objective, run)
        return model


class _Adversaries(nn.Module):
    """Module that contains the network and the domain classifier, for one optimiser."""

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
    """Return the features unchanged. In the backward pass their gradient is multiplied by -weight.

    Examples:
        >>> features = torch.ones(2, requires_grad=True)
        >>> reverse_gradient(features, torch.tensor(0.5)).sum().backward()
        >>> features.grad
        tensor([-0.5000, -0.5000])
    """
    reversed_features: Tensor = _Reversed.apply(features, weight)  # type: ignore[no-untyped-call]
    return reversed_features


def ramp(progress: float) -> float:
    """Return 2 / (1 + exp(-10 p)) - 1 for the progress p. It rises from 0 to nearly 1."""
    return 2 / (1 + math.exp(-10 * progress)) - 1
