"""The relearn attack: fine-tune on a few images, and measure how fast the forgotten classes return."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from pour._records import record
from pour.auditing.features import Role
from pour.auditing.measurement import Reading
from pour.data.draws import rows_per_class, stratified_rows
from pour.errors import UsageError
from pour.metrics.intervals import wilson
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.head import named_head
from pour.models.projecting.projected_head import ProjectedHead, is_head_layer, is_masked
from pour.models.tap import extract_features
from pour.models.unwrap import unwrap
from pour.training.loop import fit
from pour.training.recipes import Recipe
from pour.training.step import make_optimizer

if TYPE_CHECKING:
    from pour.data.samples import IndexedSamples
    from pour.data.splits import Splits
    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["Relearning", "RelearningCurve", "relearn"]

_EVALUATION_IMAGES = 1000
_EVALUATION_BATCH = 500
_RECIPE = Recipe(name="relearn", steps=1, lr=0.01, weight_decay=0.0, nesterov=False, schedule="constant", augment=False)


@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Options of the attack.

    Examples:
        >>> Relearning(images_per_class=5, steps=(0, 10)).steps
        (0, 10)
    """

    images_per_class: int = 10
    """Number of training images of each class, forgotten and retained, for the fine-tuning."""
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    """Numbers of steps after which the accuracy is measured."""
    lr: float = 0.01
    """Learning rate of SGD with momentum 0.9, constant."""
    batch_size: int = 64
    """Number of images per step."""

    def __post_init__(self) -> None:
        if self.images_per_class < 1:
            raise UsageError(f"Relearning needs at least one image per class, but got {self.images_per_class}.")
        if not self.steps or min(self.steps) < 0 or list(self.steps) != sorted(set(self.steps)) or self.steps[-1] == 0:
            raise UsageError(
                f"The steps of relearning must increase from 0 or more, such as (0, 10, 50), not {self.steps}."
            )
        if not self.lr > 0 or self.batch_size < 1:
            raise UsageError(
                f"Relearning needs a positive learning rate and batch size, not {self.lr} and {self.batch_size}."
            )


@record()
class RelearningCurve:
    """Accuracy on test images after each number of steps."""

    role: Role
    images_per_class: int
    steps: tuple[int, ...]
    forget: tuple[Reading, ...]
    """Accuracy on the forgotten classes."""
    retain: tuple[Reading, ...]
    """Accuracy on the retained classes."""

    def __post_init__(self) -> None:
        if not len(self.steps) == len(self.forget) == len(self.retain) or max(self.steps, default=0) <= 0:
            raise UsageError("A relearning curve needs one accuracy per step, and a step above 0.")

    @property
    def mean_forget(self) -> Reading:
        """Mean accuracy on the forgotten classes over the points after step 0, with the means of the interval ends."""
        later = [point for step, point in zip(self.steps, self.forget, strict=True) if step > 0]
        low, high = (sum(ends) / len(later) for ends in zip(*(point.bounds for point in later), strict=True))
        return Reading(value=sum(point.value for point in later) / len(later), low=low, high=high, n=later[0].n)


def relearn(
    model: nn.Module,
    splits: Splits,
    run: Run,
    *,
    role: Role = "unlearned",
    options: Relearning | None = None,
    head: str | None = None,
) -> RelearningCurve:
    """Fine-tune a copy of `model` on a few training images. Return its accuracy on test images after each step.

    The attack shows how much of the forgotten classes the encoder contains, compared with the curve of a retrained
    model. It treats all models alike. A projector before the head is removed, because anyone with the weights can
    remove it. The head's rows of the forgotten and of the masked classes start as the mean of the other rows, so that
    a mask or a deleted row makes no difference. The statistics of BatchNorm stay frozen.

    Args:
        model: Model to attack. It is not changed.
        splits: Training and test images.
        run: Seed, device and precision.
        role: Role of the model in the audit.
        options: Options of the attack.
        head: Dotted name of the head, if it cannot be found.
    """
    options = options or Relearning()
    network = _without_protection(model, splits.forgotten, head)
    network.to(device=run.torch_device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for parameter in network.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    images = _few_images(splits, options.images_per_class, run.seed)
    tests = [
        part.take(stratified_rows(part.labels, _EVALUATION_IMAGES, run.seed))
        for part in (splits.forget_test, splits.retain_test)
    ]
    recipe = replace(_RECIPE, batch_size=options.batch_size, lr=options.lr)
    optimizer = make_optimizer({1.0: list(network.parameters())}, recipe, run.torch_device)
    quiet = replace(run, progress=False, history=[], choices={})
    accuracies: list[tuple[Reading, ...]] = []
    done = 0
    for step in options.steps:
        if step > done:
            # A new seed, because otherwise each part of the training would repeat the first batches.
            batches = images.batches(options.batch_size, run.torch_device, seed=run.seed + done, shuffle=True)
            stretch = recipe.change(steps=step - done)
            fit(network, batches, stretch, quiet, batch_norm="frozen", graph=False, compile=False, optimizer=optimizer)
            done = step
        accuracies.append(tuple(_accuracy(network, test, run, head) for test in tests))
    forget, retain = zip(*accuracies, strict=True)
    return RelearningCurve(
        role=role, images_per_class=options.images_per_class, steps=options.steps, forget=forget, retain=retain
    )


def _without_protection(model: nn.Module, forgotten: tuple[int, ...], head: str | None) -> nn.Module:
    """Return a copy without a projector, whose head's rows of forgotten and masked classes are the mean of the others.

    Masked rows have no part in the mean, because their bias would hide the other rows.
    """
    network = copy_model(unwrap(model)).float()
    for old in named_head(network, head).each:
        network = _without_rows(network, old, forgotten)
    return network


def _without_rows(network: nn.Module, old: Head, forgotten: tuple[int, ...]) -> nn.Module:
    """Change one head of `network` in place. Return the network, or the layer if the network was its own head."""
    if isinstance(old.module, ProjectedHead):
        network = swap_module(network, old.module, old.module.head)
    layer = old.layer
    if not is_head_layer(layer):
        # The rows of another module are set in a layer of the same form.
        layer = old.form.as_layer()
        network = swap_module(network, old.layer, layer)
    renewed = is_masked(torch.zeros_like(old.weight[:, 0]) if old.bias is None else old.bias)
    renewed[list(forgotten)] = True
    for name in ("weight", "bias"):
        if parametrize.is_parametrized(layer, name):
            parametrize.remove_parametrizations(layer, name)
        tensor = getattr(layer, name)
        if isinstance(tensor, torch.Tensor):
            rows = tensor.detach().clone()
            rows[renewed] = rows[~renewed].mean(dim=0)
            # A new parameter, because another layer may share the old one.
            setattr(layer, name, nn.Parameter(rows))
    return network


def _few_images(splits: Splits, per_class: int, seed: int) -> IndexedSamples:
    samples = splits.train.whole
    counts = dict.fromkeys(np.unique(samples.labels).tolist(), per_class)
    return samples.take(np.sort(rows_per_class(samples.labels, counts, np.random.default_rng(seed))))


def _accuracy(model: nn.Module, samples: IndexedSamples, run: Run, head: str | None) -> Reading:
    output = extract_features(model, samples.batches(_EVALUATION_BATCH, run.torch_device), head=head)
    right = int((output.scores.argmax(dim=1) == output.labels).sum())
    return Reading.of(wilson(right, len(samples)), len(samples))
