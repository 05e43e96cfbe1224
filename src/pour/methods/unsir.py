"""UNSIR: train on noise images with the class's label, then repair the other classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.models.head import find_head
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.contract import option
from pour.unlearning.forget_only import forgotten_classes, requested_classes
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import EpochsFrom, side_by_side
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Unsir"]

_NOISE_LR = 0.1
_NOISE_STEPS = 40
_NOISE_SHRINKAGE = 0.1


@register
@dataclass(kw_only=True)
class Unsir(IterativeMethod):
    """Learn noise that the network does not classify as the class, train on it with the class's label, then repair.

    The method reads no image of the forgotten classes. Noise images n minimise -CE(f(n), u) + 0.1 |n|^2 on the frozen
    network (Adam 0.1, 40 steps). An epoch of CE on a mixture of the noise, with label u, and `per_class` retained
    images per class impairs the network. An epoch on these retained images alone repairs it. The authors' rates are
    Adam 0.02 and 0.01 (here AdamW without weight decay, which is the same) at batch 256, with 20 batches of noise. With
    such rates results vary between seeds. Their notebook always labels the noise 0. Here it has the label of the class.
    n is measured in quarters of the pixel range from mid-grey, the usual normalisation. BatchNorm trains, as in their
    code, because the last epoch has retained images alone.
    """

    name: ClassVar[str] = "unsir"
    paper: ClassVar[str] = "UNSIR (Tarun et al., TNNLS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "2 epochs on up to 1000 retained images of each class"
    regroups: ClassVar[bool] = True
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "repair_lr")

    per_class: int = option(1000, "Number of retained images per class.", least=1)
    noise_batches: int = option(20, "Number of batches of noise in the mixture.", least=1)
    repair_lr: float = option(0.01, "Learning rate of the repair.", above=0)
    lr: float | None = option(0.02, "Learning rate of the impairment.")
    epochs: int | None = option(
        1, "Number of passes over the mixture, and then over its retained images; set these or steps."
    )
    batch_size: int = option(256, "Number of images per step, and number of noise images.", least=2)
    optimizer: Literal["sgd", "adamw"] = "adamw"
    augment: bool = option(False, "Not used; the retained images are not changed.")
    batch_norm: BatchNormMode = option(
        "train", "Running statistics of BatchNorm: train (the last epoch has retained images alone), or frozen."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Learn the noise, impair the network, and repair it."""
        images, labels = self._noise(model, requested_classes(model, request), request, run)
        # Classes of earlier requests have no retained images.
        retained_classes = find_head(model).num_classes - len(forgotten_classes(model, request))
        limit = self.per_class * retained_classes
        count = min(limit, request.retain.count or limit)
        noise_count = self.noise_batches * self.batch_size
        noise_size = min(max(1, round(self.batch_size * noise_count / (noise_count + count))), self.batch_size - 1)
        retained = as_epochs(request.retain.sample(limit, run, batch_size=self.batch_size - noise_size), run)

        def impair(student: nn.Module, retain: Tensor, labels: Tensor, noise: Tensor, noise_labels: Tensor) -> Tensor:
            scores = scores_of(student(torch.cat([to_unit(retain), noise])))
            return F.cross_entropy(scores, torch.cat([labels, noise_labels]))

        noise = _noise_batches(images, labels, noise_size, len(retained), run.seed)
        self.train(model, side_by_side(retained, noise), impair, run)
        # BatchNorm cannot train on a single image; the batches of the impairment contain noise as well.
        norms = (isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        alone = self.batch_norm == "frozen" or not any(norms)
        whole = as_epochs(request.retain.sample(limit, run, batch_size=self.batch_size, alone=alone), run)
        self.train(model, whole, classification_loss, run, lr=self.repair_lr)
        return model

    def _noise(self, model: nn.Module, classes: tuple[int, ...], request: Granted, run: Run) -> tuple[Tensor, Tensor]:
        """Return noise images in units of the pixel range and their labels, the classes in equal parts."""
        frozen = frozen_copy(model, run)
        retained = request.retain
        retained.check_unit(self.name)
        shape = next(iter(retained.sample(1, run)))[0].shape[1:]
        noise = _Noise(self.batch_size, shape)
        labels = torch.tensor(classes, device=run.torch_device).repeat(self.batch_size)[: self.batch_size]

        def objective(noise: nn.Module, labels: Tensor) -> Tensor:
            confusion = F.cross_entropy(scores_of(frozen(noise())), labels)
            size: Tensor = noise.values.square().flatten(1).sum(dim=1).mean()  # type: ignore[operator]
            return _NOISE_SHRINKAGE * size - confusion

        length: dict[str, Any] = {"lr": _NOISE_LR, "epochs": 1, "steps": None, "schedule": "constant"}
        adam = self.optimizer_for(noise, run, optimizer="adamw", weight_decay=0.0, **length)
        self.train(noise, [(labels,)] * _NOISE_STEPS, objective, run, optimizer=adam, **length)
        return noise().detach(), labels


class _Noise(nn.Module):
    """Images whose pixels are parameters."""

    def __init__(self, count: int, shape: torch.Size) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(count, *shape))

    def forward(self) -> Tensor:
        return 0.5 + 0.25 * self.values


def _noise_batches(images: Tensor, labels: Tensor, size: int, length: int, seed: int) -> EpochsFrom:
    """Return batches drawn from the noise images, without repetition in a batch if there are enough images."""

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = np.random.default_rng([seed, number])
        for _ in range(length):
            rows = torch.from_numpy(rng.permutation(len(images))[:size]).to(images.device)
            yield images[rows], labels[rows]

    return EpochsFrom(length, epoch)
