"""Copying a model and exchanging one of its modules."""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from pour.errors import UsageError
from pour.models.history import copy_card

__all__ = ["copy_model", "swap_module"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_model(model: ModuleT) -> ModuleT:
    """A deep copy, with a sentence where PyTorch cannot make one."""
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        if "deepcopy" not in str(error):
            raise
        raise UsageError(
            "The model cannot be copied because some weights are computed by the old torch.nn.utils.weight_norm; "
            "remove it, or use torch.nn.utils.parametrizations.weight_norm."
        ) from error


def swap_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put ``new`` wherever ``old`` is registered in ``model``; return the model, which is ``new`` if it was ``old``."""
    if model is old:
        copy_card(model, new)
        return new
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    return model
