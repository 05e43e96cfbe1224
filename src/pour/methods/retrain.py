"""Retraining: the reference for every other method."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.errors import UsageError
from pour.training.loop import fit
from pour.training.recipes import RECIPES
from pour.unlearning.contract import Method, option
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.teachers import fresh_model

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Retrain"]


@register
@dataclass(kw_only=True)
class Retrain(Method):
    """Train a fresh network on the retained images alone, as the original was trained: the reference.

    The loss is CE(W theta(x), y) over D_r, from a new initialisation. The head keeps a score for every class. The
    forgotten class is never a target, so its row moves to minus the mean of the other rows, and it is not predicted.
    With the same seed `pour train --without` returns the same network. Two retrained networks with different seeds
    agree only in part: compare them before you interpret the distance of a model to one of them.
    """

    name: ClassVar[str] = "retrain"
    paper: ClassVar[str] = "reference"
    needs: ClassVar[tuple[Need, ...]] = ("retain", "build")
    several_heads: ClassVar[bool] = True
    cost: ClassVar[str] = "a full training"

    epochs: int | None = option(None, "Number of passes over the retained images, instead of the recipe.", least=1)
    lr: float | None = option(None, "Highest learning rate, instead of the recipe.", above=0)
    batch_size: int | None = option(None, "Number of images per step, instead of the recipe.", least=1)

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train a new network with the scores of `model`."""
        if request.recipe is None:
            raise UsageError(
                "retrain needs the recipe of the original's training; pass recipe= in the request, a Recipe or one of "
                f"{', '.join(RECIPES)}."
            )
        run.choose(recipe=request.recipe.name)
        recipe = request.recipe.change(lr=self.lr, batch_size=self.batch_size)
        if self.epochs is not None:
            recipe = dataclasses.replace(recipe, epochs=self.epochs, steps=None)
        fresh = fresh_model(model, request, run)
        batches = request.retain.training(run, batch_size=recipe.batch_size, augment=recipe.augment, full=True)
        log = fit(fresh, batches, recipe, run, description=self.name)
        for step, loss in enumerate(log.losses):
            run.log(step, loss=loss)
        return fresh
