"""Controls for POUR-D in `pour_d.py`. They read retained images, and are not methods of the package."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn

from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head
from pour.models.projecting.direction import head_removal
from pour.models.tap import extract_features, tap_features, to_unit
from pour.unlearning.contract import option
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.toolkit.batches import side_by_side
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from pour.training.run import Run
    from pour.training.schedule import Schedule
    from pour.unlearning.request import Granted, Need

_SAMPLE = 5000


@dataclass(kw_only=True)
class Blend(IterativeMethod):
    """Move the forgotten features to the mean and covariance of all retained features, which are kept.

    The loss on forget images is |mean(z_f) - m|^2 + |cov(z_f) - C|^2 / tr C. Here m and C are mean and covariance of
    retained images under the projected original. The loss on retained images is `anchor` times
    |z_r - P theta(x_r)|^2. A class that is spread over the others has new features, which RUS(o) rewards, and a linear
    probe can hardly recognise it.
    """

    name: ClassVar[str] = "blend"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "400 steps on forget and retained images"

    anchor: float = option(3.0, "Weight of the retained images.")
    lr: float | None = 3e-4
    steps: int | None = 400
    optimizer: Literal["sgd", "adamw"] = "adamw"
    schedule: Schedule = "one-cycle"

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train the encoder of ``model``; the head stays."""
        head = find_head(model)
        projector = head_removal(head, requested_classes(model, request), "weights").to(run.torch_device)
        sample = extract_features(model, request.retain.sample(_SAMPLE, run), device=run.torch_device)
        mean, cov = moments(projector(sample.features.float()))
        teacher = frozen_copy(model, run)
        forget, retain = self.loaders(run, request.forget, request.retain)
        head.module.requires_grad_(False)
        with tap_features(model, head.name) as tap, tap_features(teacher, head.name) as before:

            def objective(student: nn.Module, gone: Tensor, _: Tensor, kept: Tensor, __: Tensor) -> Tensor:
                kept = to_unit(kept)
                with torch.no_grad():
                    teacher(kept)
                    target = projector(before.features.float())
                student(torch.cat([to_unit(gone), kept]))
                features = tap.features.float()
                found, spread = moments(features[: len(gone)])
                distance = (found - mean).square().sum() + (spread - cov).square().sum() / cov.trace()
                return distance + self.anchor * (features[len(gone) :] - target).square().sum(1).mean()

            self.train(model, side_by_side(forget, retain), objective, run)
        head.module.requires_grad_(True)
        return model


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the covariance of the rows."""
    mean = features.mean(0)
    centred = features - mean
    return mean, centred.T @ centred / (len(features) - 1)  # torch.cov waits for the device, which a CUDA graph cannot


def with_fresh_block(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy with a newly initialised last block, the only block that is trained."""
    network = copy_model(model).requires_grad_(False)
    torch.manual_seed(seed)
    block = network.blocks[-1].requires_grad_(True)  # type: ignore[index, operator]
    for module in block.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    return network
