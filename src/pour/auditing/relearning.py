"""The relearn attack: how fast does a little fine-tuning bring the forgotten classes back?"""

from __future__ import annotations

from dataclasses import dataclass
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
from pour.models.head import find_head
from pour.models.projecting.projected_head import ProjectedHead, is_masked
from pour.models.tap import extract_features
from pour.models.unwrap import unwrap
from pour.training.loop import fit
from pour.training.recipes import Recipe
from pour.training.run import Run
from pour.training.step import make_optimizer

if TYPE_CHECKING:
    from pour.data.samples import IndexedSamples
    from pour.data.splits import Splits

__all__ = ["Relearning", "RelearningCurve", "relearn"]

_EVALUATION_IMAGES = 1000
_EVALUATION_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Relearning:
    """Options of the attack.

    Example:
        >>> Relearning(images_per_class=5, steps=(0, 10)).steps
        (0, 10)
    """

    images_per_class: int = 10
    """Training images of every class, forgotten and retained, that the attacker has."""
    steps: tuple[int, ...] = (0, 1, 2, 5, 10, 20, 50)
    """After how many steps the accuracy is taken."""
    lr: float = 0.01
    """Learning rate of SGD with momentum 0.9, constant."""
    batch_size: int = 64
    """Images to a step."""

    def __post_init__(self) -> None:
        if self.images_per_class < 1:
            raise UsageError(f"Relearning needs at least one image per class, but got {self.images_per_class}.")
        if not self.steps or min(self.steps) < 0 or list(self.steps) != sorted(set(self.steps)) or self.steps[-1] == 0:
            raise UsageError(
                f"The steps of relearning must rise from 0 or more, such as (0, 10, 50), not {self.steps}."
            )
        if not self.lr > 0 or self.batch_size < 1:
            raise UsageError(
                f"Relearning needs a positive learning rate and batch size, not {self.lr} and {self.batch_size}."
            )


@record
@dataclass(frozen=True, kw_only=True)
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
        return Reading(
            value=sum(point.value for point in later) / len(later),
            low=sum(point.bounds[0] for point in later) / len(later),
            high=sum(point.bounds[1] for point in later) / len(later),
            n=later[0].n,
        )


def relearn(
    model: nn.Module,
    splits: Splits,
    run: Run,
    *,
    role: Role = "unlearned",
    options: Relearning | None = None,
    head: str | None = None,
) -> RelearningCurve:
    """Fine-tune a copy of ``model``, encoder and head, on a few training images and watch the forgotten classes return.

    Every model is attacked on equal terms: a projector before the head is taken off, since whoever holds the weights
    can do so, and the head's rows for the forgotten classes, and for those masked before, start as the mean of the
    others, so that a mask or a deleted row neither hides nor helps. What is measured is how much of the class the
    encoder still has, which only means something beside the same curve of a retrained model. BatchNorm's statistics
    stay frozen.

    Args:
        model: left as it is.
        splits: where the training and the test images come from.
        run: seed, device, precision, progress.
        role: whose curve this is.
        options: size of the attack.
        head: name of the head, where it is not found by itself.
    """
    options = options or Relearning()
    victim = _opened(model, splits.forgotten, head)
    few = _few_images(splits, options.images_per_class, run.seed)
    tests = {
        side: split.take(stratified_rows(split.labels, _EVALUATION_IMAGES, run.seed))
        for side, split in (("forget", splits.forget_test), ("retain", splits.retain_test))
    }
    quiet = Run(seed=run.seed, device=run.device, precision=run.precision, progress=False)
    recipe = Recipe(
        name="relearn",
        steps=1,
        batch_size=options.batch_size,
        lr=options.lr,
        weight_decay=0.0,
        nesterov=False,
        schedule="constant",
        augment=False,
    )
    victim.to(device=run.torch_device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    for parameter in victim.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    optimizer = make_optimizer({1.0: list(victim.parameters())}, recipe, run.torch_device)
    curves: dict[str, list[Reading]] = {"forget": [], "retain": []}
    done = 0
    for step in options.steps:
        if step > done:
            # Another seed for each stretch between two points, so that they do not start with the same batches.
            loader = few.batches(options.batch_size, run.torch_device, seed=run.seed + done, shuffle=True)
            fit(
                victim,
                loader,
                recipe.change(steps=step - done),
                quiet,
                batch_norm="frozen",
                graph=False,
                compile=False,
                optimizer=optimizer,
            )
            done = step
        for side, split in tests.items():
            curves[side].append(_accuracy(victim, split, run, head))
    return RelearningCurve(
        role=role,
        images_per_class=options.images_per_class,
        steps=options.steps,
        forget=tuple(curves["forget"]),
        retain=tuple(curves["retain"]),
    )


def _opened(model: nn.Module, forgotten: tuple[int, ...], head: str | None) -> nn.Module:
    network = copy_model(unwrap(model)).float()
    found = find_head(network, head=head)
    if isinstance(found.module, ProjectedHead):
        network = swap_module(network, found.module, found.module.head)
    # What an earlier request masked has no part in the mean: its bias alone would drown the others.
    anew = is_masked(torch.zeros_like(found.weight[:, 0]) if found.bias is None else found.bias)
    anew[list(forgotten)] = True
    layer = found.layer
    for name in ("weight", "bias"):
        if parametrize.is_parametrized(layer, name):
            parametrize.remove_parametrizations(layer, name)
        old = getattr(layer, name)
        if isinstance(old, torch.Tensor):
            rows = old.detach().clone()
            rows[anew] = rows[~anew].mean(dim=0)
            # A parameter of its own: the old one may be another layer's too.
            setattr(layer, name, nn.Parameter(rows))
    return network


def _few_images(splits: Splits, per_class: int, seed: int) -> IndexedSamples:
    split = splits.train.whole
    counts = dict.fromkeys(np.unique(split.labels).tolist(), per_class)
    return split.take(np.sort(rows_per_class(split.labels, counts, np.random.default_rng(seed))))


def _accuracy(model: nn.Module, split: IndexedSamples, run: Run, head: str | None) -> Reading:
    seen = extract_features(model, split.batches(_EVALUATION_BATCH, run.torch_device), head=head)
    right = int((seen.scores.argmax(dim=1) == seen.labels).sum())
    return Reading.of(wilson(right, len(split)), len(split))
