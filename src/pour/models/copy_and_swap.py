"""Copy a model, and replace one of its modules."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.card import copy_card
from pour.models.projecting.saving import guard_saving

__all__ = ["copy_model", "in_float32", "swap_module"]

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def copy_model(model: ModuleT, memo: dict[int, Any] | None = None) -> ModuleT:
    """Return a deep copy. Raise UsageError if a part of the model cannot be copied.

    A tensor that a module computed and stored, such as the weight of `torch.nn.utils.weight_norm`, is copied without
    its gradient history.

    Args:
        model: Model to copy.
        memo: Dictionary to which the copy of each part is added, for a later `copy.deepcopy` of an object that refers
            to parts of the model.
    """
    memo = {} if memo is None else memo
    computed = [
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    ]
    memo.update({id(value): value.detach().clone() for value in computed})
    try:
        return copy.deepcopy(model, memo)
    except (RuntimeError, TypeError) as error:
        if not any(word in str(error) for word in ("deepcopy", "pickle")):
            raise
        raise UsageError(f"The model cannot be copied because {_reason_not_copied(model)}") from error


def _reason_not_copied(model: nn.Module) -> str:
    """Return the part of the model that Python cannot copy, and the remedy."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_"):
                continue
            try:
                copy.deepcopy(value)
            except (RuntimeError, TypeError):
                place = f"{name}.{attribute}" if name else attribute
                return f"its attribute {place} cannot; set it to None or detach it first."
    return "one of its private attributes cannot; remove attributes other than parameters, buffers and plain values."


def in_float32(model: ModuleT) -> ModuleT:
    """Return the model itself if all its weights are float32, otherwise a float32 copy.

    Examples:
        >>> layer = nn.Linear(2, 2)
        >>> in_float32(layer) is layer, in_float32(nn.Linear(2, 2).half()).weight.dtype
        (True, torch.float32)
    """
    tensors = (*model.parameters(), *model.buffers())
    if all(tensor.dtype == torch.float32 for tensor in tensors if tensor.is_floating_point()):
        return model
    return copy_model(model).float()


def swap_module(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Replace `old` by `new` everywhere in `model`. Return the model, or `new` if the model was `old`."""
    if model is old:
        copy_card(model, new)
        return new
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    guard_saving(model)
    return model
