"""Retraining: the reference that every other method is measured against."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.errors import UsageError
from pour.training.loop import fit
from pour.training.recipes import RECIPES, Recipe, get_recipe
from pour.unlearning.contract import Method
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

    min CE(W theta(x), y) over D_r from a new initialisation. The head keeps a score for every class; the forgotten
    one is never a target, so its row is driven to minus the mean of the others and it is not predicted. With the same
    seed this is what ``pour train --without`` makes. Two retrained seeds agree only in part: score them against each
    other before reading a distance to one of them.
    """

    name: ClassVar[str] = "retrain"
    paper: ClassVar[str] = "reference"
    needs: ClassVar[tuple[Need, ...]] = ("retain", "build")
    cost: ClassVar[str] = "a full training"

    recipe: str | None = None
    """Name of a recipe (fast, long, digits, ...); by default that of the request, how the original was trained."""
    epochs: int | None = None
    """Passes over the retained images, instead of the recipe's."""
    lr: float | None = None
    """The highest learning rate, instead of the recipe's."""
    batch_size: int | None = None
    """Images to a step, instead of the recipe's."""

    def __post_init__(self) -> None:
        if self.recipe is not None:
            self._chosen(get_recipe(self.recipe))

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train a new network; the one given only says how many scores there are."""
        known = get_recipe(self.recipe) if self.recipe is not None else request.recipe
        if known is None:
            raise UsageError(
                "retrain must know how the original was trained: pass recipe= in the request, or the option recipe "
                f"({', '.join(RECIPES)})."
            )
        recipe = self._chosen(known)
        fresh = fresh_model(model, request, run)
        batches = request.retain.training(run, batch_size=recipe.batch_size, augment=recipe.augment, full=True)
        log = fit(fresh, batches, recipe, run, description=self.name)
        for step, loss in enumerate(log.losses):
            run.log(step, loss=loss)
        return fresh

    def _chosen(self, recipe: Recipe) -> Recipe:
        changed = recipe.change(lr=self.lr, batch_size=self.batch_size)
        return changed if self.epochs is None else dataclasses.replace(changed, epochs=self.epochs, steps=None)
