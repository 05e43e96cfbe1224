"""DUCK: move forget images to the nearest wrong centroid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.models.head import find_head
from pour.models.output import scores_of
from pour.models.tap import extract_features, tap_features, to_unit
from pour.unlearning.contract import option
from pour.unlearning.forget_only import forget_accuracy
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import from_epoch, repeated, side_by_side
from pour.unlearning.toolkit.features import pool_features
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
    """Move forget images' features to the nearest centroid of a retained class, and train on retained images.

    The loss is lambda_1 (1 - cos(theta(x), c(x))) over D_f + lambda_2 CE(scores / T) over D_r. The centroids are the
    mean features of the retained classes in the original network, of at most 50 batches in evaluation mode. The
    centroid c(x) is nearest to the original's features of x by cosine, so it does not move during training. Every
    forget batch is paired with `retain_batches` retained batches. The epochs end when fewer than 1 % of the
    un-augmented forget images are classified as before. Then `repair_epochs` follow with lambda_1 / 10, at a low rate
    that falls along a cosine.

    The defaults are the authors' values. lambda is 1 and 1.4, T is 2, and batches have 256 images. Adam (here AdamW
    without weight decay, which is the same) has the rates 4e-4 and 1e-4. There are at most 200 epochs and 41 retained
    batches (6 on CIFAR-100). BatchNorm is frozen, because every step contains as many forget as retained images.
    """

    name: ClassVar[str] = "duck"
    paper: ClassVar[str] = "DUCK (Cotogni et al., 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "41 steps for each forget batch, often one epoch; 2 epochs on retained images"
    regroups: ClassVar[bool] = True
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "repair_lr")
    length_option: ClassVar[str | None] = "retain_batches"
    whole_epochs: ClassVar[bool] = True
    constant_rate: ClassVar[bool] = True

    lambda_1: float = option(1.0, "Weight of the forget images' distance.", least=0)
    lambda_2: float = option(1.4, "Weight of the retained images' cross-entropy.", least=0)
    temperature: float = option(2.0, "Temperature T of the cross-entropy.", above=0)
    retain_batches: int = option(41, "Number of retained batches, and so of steps, per forget batch.", least=1)
    stop_accuracy: float = option(
        0.01, "Stop before an epoch if the accuracy on forget images is below this share.", least=0, most=1
    )
    repair_epochs: int = option(2, "Number of passes over the retained images at the end.", least=0)
    repair_lr: float = option(1e-4, "Highest learning rate of these passes.", above=0)
    lr: float | None = 4e-4
    epochs: int | None = option(200, "Largest number of passes over the forget images.")
    steps: int | None = option(None, "Not used; set epochs.")
    batch_size: int = option(256, "Number of images per step, of each kind.")
    optimizer: Literal["sgd", "adamw"] = "adamw"

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model` towards the centroids, then at a low rate."""
        head = find_head(model)
        centroids = self._centroids(model, head, request, run)
        original = frozen_copy(model, run)
        sizes = (self.batch_size, self.batch_size, _REPAIR_BATCH)
        forget, retain, large = self.loaders(run, request.forget, request.retain, request.retain, sizes=sizes)
        optimizer = self.optimizer_for(model, run)
        weights = {"pull": self.lambda_1}
        with tap_features(model, head) as tap, tap_features(original, head) as before:

            def objective(
                student: nn.Module, forget_images: Tensor, _: Tensor, retain_images: Tensor, retain_labels: Tensor
            ) -> Tensor:
                forget_images = to_unit(forget_images)
                with torch.no_grad():
                    original(forget_images)
                    target = nearest(pool_features(before.features, head.dim), centroids)
                student(forget_images)
                distance = 1 - F.cosine_similarity(pool_features(tap.features, head.dim).float(), target).mean()
                scores = scores_of(student(to_unit(retain_images)))
                cross_entropy = F.cross_entropy(scores / self.temperature, retain_labels)
                return weights["pull"] * distance + self.lambda_2 * cross_entropy

            steps = len(forget) * self.retain_batches
            pairs = side_by_side(repeated(forget, self.retain_batches), retain, length=steps)
            for number in range(self.epochs or 0):
                if forget_accuracy(model, request, run) < self.stop_accuracy:
                    break
                self.train(model, from_epoch(pairs, number), objective, run, optimizer=optimizer, epochs=1)
            if self.repair_epochs:
                weights["pull"] = _REPAIR_FORGET_FACTOR * self.lambda_1
                low: dict[str, Any] = {"lr": self.repair_lr, "schedule": "cosine", "epochs": self.repair_epochs}
                self.train(model, side_by_side(forget, large, length=len(large)), objective, run, **low)
        return model

    def _centroids(self, model: nn.Module, head: Head, request: Granted, run: Run) -> Tensor:
        """Return the mean features of the retained classes, (K, d)."""
        images = request.retain.sample(_CENTROID_BATCHES * self.batch_size, run)
        original = extract_features(model, images, device=run.torch_device)
        features, labels = pool_features(original.features, head.dim).float(), original.labels
        return torch.stack([features[labels == label].mean(dim=0) for label in torch.unique(labels)])


def nearest(features: Tensor, centroids: Tensor) -> Tensor:
    """Return the centroid of (K, d) with the largest cosine for each of the features (n, d): (n, d).

    Examples:
        >>> nearest(torch.tensor([[2.0, 0.1]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
        tensor([[1., 0.]])
    """
    with torch.autocast(features.device.type, enabled=False):
        cosines = F.normalize(features.float(), dim=1) @ F.normalize(centroids, dim=1).T
    return centroids[cosines.argmax(dim=1)]
