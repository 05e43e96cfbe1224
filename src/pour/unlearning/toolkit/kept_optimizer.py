"""An optimiser that a method keeps over several calls of the training loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.training.step import make_optimizer, trainable

if TYPE_CHECKING:
    import torch
    from torch import nn

    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["optimizer_for"]


def optimizer_for(model: nn.Module, recipe: Recipe, run: Run) -> torch.optim.Optimizer:
    """The recipe's optimiser over everything that trains in ``model``, which goes to the run's device."""
    model.to(run.torch_device)
    return make_optimizer({1.0: list(trainable(model).values())}, recipe, run.torch_device)
