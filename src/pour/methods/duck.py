"""DUCK: pull forget images to the nearest wrong centroid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.output import scores_of
from pour.models.tap import extract_features, tap_features, to_unit
from pour.training.loop import as_epochs
from pour.unlearning.forget_only import forget_accuracy
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Later, Repeated, Together
from pour.unlearning.toolkit.features import pool_features
from pour.unlearning.toolkit.kept_optimizer import optimizer_for
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from torch import nn

    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Duck", "nearest"]

_CENTROID_BATCHES = 50
_REPAIR_BATCH = 512
_REPAIR_FORGET_FACTOR = 0.1


@register
@dataclass(kw_only=True)
class Duck(IterativeMethod):
    """Pull each forget image's features to the nearest centroid of a retained class, classifying retained images.

    min lambda_1 (1 - cos(theta(x), c(x))) over D_f + lambda_2 CE(scores / T) over D_r. The centroids are the retained
    classes' mean features in the original network (at most 50 batches, evaluation mode), and c(x) is the one nearest
    to the original's features of x by cosine: it does not move while the network does. Every forget batch meets
    ``retain_batches`` retained ones; epochs go on until fewer than 1 % of the un-augmented forget images are classified
    as before, or ``epochs`` are over. Then ``repair_epochs`` at a low rate, falling along a cosine, with lambda_1 / 10.

    lambda 1 and 1.4, T 2, batch 256, Adam (here AdamW without weight decay, which is the same) at 4e-4 and 1e-4, 200
    epochs at most and 41 retained batches (6 were used on CIFAR-100) are those of the authors' code. BatchNorm is
    frozen: every step shows as many forget as retained images.
    """

    name: ClassVar[str] = "duck"
    paper: ClassVar[str] = "DUCK (Cotogni et al., 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "41 steps for each forget batch, often one epoch; 2 epochs on retained images"
    regroups: ClassVar[bool] = True
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "repair_lr")
    length_option: ClassVar[str | None] = "retain_batches"

    lambda_1: float = 1.0
    """Weight of the forget images' distance."""
    lambda_2: float = 1.4
    """Weight of the retained images' cross-entropy."""
    temperature: float = 2.0
    """T of the cross-entropy."""
    retain_batches: int = 41
    """Retained batches, and so steps, for each forget batch."""
    stop_accuracy: float = 0.01
    """Stop before an epoch when the accuracy on forget images is below this."""
    repair_epochs: int = 2
    """Passes over the retained images at the end."""
    repair_lr: float = 1e-4
    """The highest learning rate of those."""
    lr: float | None = 4e-4
    """The highest learning rate."""
    epochs: int | None = 200
    """The most passes over the forget images."""
    steps: int | None = None
    """Not used: give epochs."""
    batch_size: int = 256
    """Images to a step, of either kind."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """SGD with momentum, or AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is None:
            raise UsageError("duck goes by whole passes over the forget images; give epochs, not steps.")
        for name in ("temperature", "repair_lr"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be above 0, but is {getattr(self, name)}.")
        if self.schedule != "constant":
            raise UsageError("duck trains pass by pass, and a schedule would begin anew with each; leave it constant.")
        if self.lambda_1 < 0 or self.lambda_2 < 0 or not 0 <= self.stop_accuracy <= 1:
            raise UsageError(
                "lambda_1 and lambda_2 must not be negative and stop_accuracy a share, 0 to 1, but they are "
                f"{self.lambda_1}, {self.lambda_2} and {self.stop_accuracy}."
            )
        if self.retain_batches < 1 or self.repair_epochs < 0:
            raise UsageError(
                "retain_batches must be at least 1 and repair_epochs not negative, but they are "
                f"{self.retain_batches} and {self.repair_epochs}."
            )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model`` towards the centroids, then at a low rate."""
        head = find_head(model)
        centroids = self._centroids(model, head, request, run)
        original = frozen_copy(model, run)
        forget, retain, large = (
            as_epochs(images.training(run, batch_size=size, augment=self.augment, salt=salt), run)
            for salt, (images, size) in enumerate(
                (
                    (request.forget, self.batch_size),
                    (request.retain, self.batch_size),
                    (request.retain, _REPAIR_BATCH),
                )
            )
        )
        optimizer = optimizer_for(model, self.recipe(), run)
        weights = {"pull": self.lambda_1}
        with tap_features(model, head) as tap, tap_features(original, head) as before:

            def objective(student: nn.Module, gone: Tensor, _: Tensor, kept: Tensor, names: Tensor) -> Tensor:
                gone = to_unit(gone)
                with torch.no_grad():
                    original(gone)
                    target = nearest(pool_features(before.features, head.dim), centroids)
                student(gone)
                distance = 1 - F.cosine_similarity(pool_features(tap.features, head.dim).float(), target).mean()
                scores = scores_of(student(to_unit(kept)))
                keeping = F.cross_entropy(scores / self.temperature, names)
                return weights["pull"] * distance + self.lambda_2 * keeping

            pairs = Together(Repeated(forget, self.retain_batches), retain, length=len(forget) * self.retain_batches)
            for number in range(self.epochs or 0):
                if forget_accuracy(model, request, run) < self.stop_accuracy:
                    break
                self.train(model, Later(pairs, number), objective, run, optimizer=optimizer, epochs=1)
            if self.repair_epochs:
                weights["pull"] = _REPAIR_FORGET_FACTOR * self.lambda_1
                low: dict[str, Any] = {"lr": self.repair_lr, "schedule": "cosine", "epochs": self.repair_epochs}
                self.train(model, Together(forget, large, length=len(large)), objective, run, **low)
        return model

    def _centroids(self, model: nn.Module, head: Head, request: Granted, run: Run) -> Tensor:
        """The retained classes' mean features, (K, d)."""
        images = request.retain.sample(_CENTROID_BATCHES * self.batch_size, run)
        seen = extract_features(model, images, device=run.torch_device)
        features = pool_features(seen.features, head.dim).float()
        return torch.stack([features[seen.labels == label].mean(dim=0) for label in torch.unique(seen.labels)])


def nearest(features: Tensor, centroids: Tensor) -> Tensor:
    """For features (n, d), the centroid of (K, d) with the largest cosine, (n, d).

    Example:
        >>> nearest(torch.tensor([[2.0, 0.1]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        tensor([[1., 0.]])
    """
    with torch.autocast(features.device.type, enabled=False):
        cosines = F.normalize(features.float(), dim=1) @ F.normalize(centroids, dim=1).T
    return centroids[cosines.argmax(dim=1)]
