"""UNSIR: impair the class with noise that stands for it, then repair the rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import BatchNormMode, as_epochs, classification_loss
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Together
from pour.unlearning.toolkit.kept_optimizer import optimizer_for
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
    """Learn noise that the network is surest not to be the class, train on it as the class, then repair.

    No image of the forgotten classes is read. Noise images n are learnt by min -CE(f(n), u) + 0.1 |n|^2 on the frozen
    network (Adam 0.1, 40 steps); the network is impaired by an epoch of CE on a mixture of the noise, labelled u, and
    ``per_class`` retained images of each class, and repaired by an epoch on the latter alone. The authors' rates are
    Adam 0.02 and 0.01 (here AdamW without weight decay, which is the same) at batch 256, with 20 batches of
    noise; such rates make results vary from seed to seed. Their notebook labels the noise 0 whatever the class is;
    here it has the class's own label. n is measured in quarters of the pixel range from mid-grey, the usual
    normalisation. BatchNorm trains, as in their code: the last epoch is on retained images alone.
    """

    name: ClassVar[str] = "unsir"
    paper: ClassVar[str] = "UNSIR (Tarun et al., TNNLS 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "2 epochs on up to 1000 retained images of each class"
    regroups: ClassVar[bool] = True
    rate_options: ClassVar[tuple[str, ...]] = ("lr", "repair_lr")

    per_class: int = 1000
    """Retained images of each class that are used."""
    noise_batches: int = 20
    """Batches of noise in the mixture."""
    repair_lr: float = 0.01
    """The learning rate of the repair."""
    lr: float | None = 0.02
    """The learning rate of the impairment."""
    epochs: int | None = 1
    """Passes over the mixture, and then over its retained images; give these or steps."""
    batch_size: int = 256
    """Images to a step; also the number of noise images learnt."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """SGD with momentum, or AdamW."""
    augment: bool = False
    """Not used: the retained images are taken as they are."""
    batch_norm: BatchNormMode = "train"
    """BatchNorm's running statistics: train, ending on retained images, or frozen."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("per_class", 1), ("noise_batches", 1), ("batch_size", 2)):
            if getattr(self, name) < least:
                raise UsageError(f"{name} must be at least {least}, but is {getattr(self, name)}.")
        if not self.repair_lr > 0:
            raise UsageError(f"repair_lr must be above 0, but is {self.repair_lr}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Learn the noise, impair, repair."""
        head = find_head(model)
        classes = requested_classes(model, request)
        images, labels = self._noise(model, classes, request, run)
        # What earlier requests took has no images here.
        gone = forgotten_before(model) | set(classes)
        wanted = self.per_class * (head.num_classes - len(gone))
        kept = min(wanted, request.retain.count or wanted)
        noise_share = self.noise_batches * self.batch_size
        noise_size = min(max(1, round(self.batch_size * noise_share / (noise_share + kept))), self.batch_size - 1)
        retained = as_epochs(request.retain.sample(wanted, run, batch_size=self.batch_size - noise_size), run)

        def impair(student: nn.Module, kept: Tensor, names: Tensor, noise: Tensor, noise_names: Tensor) -> Tensor:
            scores = scores_of(student(torch.cat([to_unit(kept), noise])))
            return F.cross_entropy(scores, torch.cat([names, noise_names]))

        noise = _NoiseBatches(images, labels, noise_size, len(retained), run.seed)
        self.train(model, Together(retained, noise), impair, run)
        # BatchNorm may not take a single image; the impairment's batches hold noise as well.
        norms = (isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
        alone = self.batch_norm == "frozen" or not any(norms)
        whole = as_epochs(request.retain.sample(wanted, run, batch_size=self.batch_size, alone=alone), run)
        self.train(model, whole, classification_loss, run, lr=self.repair_lr)
        return model

    def _noise(self, model: nn.Module, classes: tuple[int, ...], request: Granted, run: Run) -> tuple[Tensor, Tensor]:
        """Noise images in the pixel range's units and their labels, the classes in equal parts."""
        frozen = frozen_copy(model, run)
        retained = request.retain
        retained.check_unit(self.name, run)
        shape = next(iter(retained.sample(1, run)))[0].shape[1:]
        noise = _Noise(self.batch_size, shape)
        labels = torch.tensor(classes, device=run.torch_device).repeat(self.batch_size)[: self.batch_size]

        def objective(noise: nn.Module, labels: Tensor) -> Tensor:
            confusion = F.cross_entropy(scores_of(frozen(noise())), labels)
            size: Tensor = noise.values.square().flatten(1).sum(dim=1).mean()  # type: ignore[operator]
            return _NOISE_SHRINKAGE * size - confusion

        length: dict[str, Any] = {"lr": _NOISE_LR, "epochs": 1, "steps": None, "schedule": "constant"}
        adam = self.recipe(optimizer="adamw", weight_decay=0.0, **length)
        batches = [(labels,)] * _NOISE_STEPS
        self.train(noise, batches, objective, run, optimizer=optimizer_for(noise, adam, run), **length)
        return noise().detach(), labels


class _Noise(nn.Module):
    """Images that are learnt."""

    def __init__(self, count: int, shape: torch.Size) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.randn(count, *shape))

    def forward(self) -> Tensor:
        return 0.5 + 0.25 * self.values


class _NoiseBatches:
    """Batches drawn from the noise images, without repetition inside a batch where there are enough."""

    def __init__(self, images: Tensor, labels: Tensor, size: int, length: int, seed: int) -> None:
        self._images = images
        self._labels = labels
        self._size = size
        self._length = length
        self._seed = seed

    def __len__(self) -> int:
        return self._length

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = np.random.default_rng([self._seed, number])
        for _ in range(self._length):
            rows = torch.from_numpy(rng.permutation(len(self._images))[: self._size]).to(self._images.device)
            yield self._images[rows], self._labels[rows]
