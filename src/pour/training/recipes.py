"""Recipes: all settings of a training under one name."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, get_args

from pour._records import convert, record
from pour.errors import UsageError
from pour.training.schedule import Schedule, learning_rate

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["RECIPES", "Recipe", "get_recipe"]


@record()
class Recipe:
    """Settings of a training.

    Examples:
        >>> Recipe(epochs=2, lr=0.1).batch_size
        512
        >>> Recipe(epochs=2, lr=-1)
        Traceback (most recent call last):
        pour.errors.UsageError: The learning rate must be above 0 and finite, but is -1.
    """

    name: str = "custom"
    """Name in results."""
    epochs: int | None = None
    """Passes over the training images. Give either epochs or steps."""
    steps: int | None = None
    """Optimisation steps. Give either epochs or steps."""
    batch_size: int = 512
    """Number of images per step."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    lr: float = 0.4
    """Highest learning rate of the schedule."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = True
    """Use Nesterov momentum."""
    weight_decay: float = 5e-4
    """Weight decay of all trained parameters."""
    schedule: Schedule = "one-cycle"
    """Schedule of the learning rate, see `learning_rate`."""
    warmup: float = 0.2
    """Share of the steps in which the learning rate of `one-cycle` rises."""
    clip: float | None = None
    """Largest norm of the gradient. None does not limit it."""
    augment: bool = True
    """Augment images by random crops, and by flips if mirrored images keep their class."""

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise UsageError("A recipe needs either epochs or steps, and not both.")
        counts = {"number of epochs": self.epochs, "number of steps": self.steps, "batch size": self.batch_size}
        for name, value in counts.items():
            if value is not None and (not isinstance(value, SupportsIndex) or value < 1):
                raise UsageError(f"The {name} must be a whole number and at least 1, but is {value}.")
        if not isinstance(self.lr, float | int) or not 0 < self.lr < math.inf:
            raise UsageError(f"The learning rate must be above 0 and finite, but is {self.lr}.")
        if not 0 <= self.momentum < 1:
            raise UsageError(f"The momentum must be at least 0 and below 1, but is {self.momentum}.")
        if not 0 <= self.weight_decay < math.inf:
            raise UsageError(f"The weight decay must be at least 0 and finite, but is {self.weight_decay}.")
        if self.schedule not in get_args(Schedule):
            raise UsageError(f"The schedule must be one of {', '.join(get_args(Schedule))}, but is {self.schedule!r}.")
        if self.optimizer not in ("sgd", "adamw"):
            raise UsageError(f"The optimizer must be sgd or adamw, but is {self.optimizer!r}.")
        if not 0 <= self.warmup <= 1:
            raise UsageError(f"The warm-up is a share of the steps, 0 to 1, but is {self.warmup}.")
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise UsageError(f"The gradient clip must be above 0 and finite, but is {self.clip}.")

    def total_steps(self, steps_per_epoch: int) -> int:
        """Return the number of steps of a whole run."""
        return self.steps if self.steps is not None else (self.epochs or 0) * steps_per_epoch

    def learning_rate(self, step: int, total: int) -> float:
        """Return the learning rate of step `step` out of `total`."""
        return learning_rate(self.schedule, self.lr, step, total, warmup=self.warmup)

    def change(self, **changes: Any) -> Recipe:
        """Return the recipe with these fields replaced. A field that is None does not change."""
        return dataclasses.replace(self, **{name: value for name, value in changes.items() if value is not None})


_FILE = Path(__file__).with_name("recipes.toml")
RECIPES = {
    name: Recipe(name=name, **settings) for name, settings in tomllib.loads(_FILE.read_text(encoding="utf-8")).items()
}
"""Recipes by name, from `recipes.toml`."""


def get_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Return the recipe with this name and these fields replaced. Raise UsageError for an unknown name or field.

    Examples:
        >>> get_recipe("fast", {"epochs": 2}).epochs, get_recipe("fast", {"steps": 100}).epochs
        (2, None)
    """
    if name not in RECIPES:
        raise UsageError(f"There is no recipe {name!r}; the recipes are {', '.join(RECIPES)}.")
    if not changes:
        return RECIPES[name]
    fields = dataclasses.asdict(RECIPES[name])
    if "steps" in changes:
        del fields["epochs"]
    return convert(Recipe, {**fields, **changes}, "The recipe")
