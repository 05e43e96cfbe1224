"""Remove the wrappers of PyTorch from a network, check that it has weights, and name the libraries that define it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from pour.errors import UsageError

__all__ = ["check_weights", "libraries_of", "unwrap", "why_unreadable"]

_COMPILED_CODE = (
    "is a TorchScript module or an exported graph, which cannot be changed; pass the nn.Module it came from."
)
_QUANTISED = ("torch.ao.nn.", "torchao.")


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside `torch.compile` and the wrappers of parallel training.

    Raises:
        UsageError: `model` is no `nn.Module`, or a TorchScript module or exported graph, which cannot be changed.

    Examples:
        >>> layer = nn.Linear(4, 3)
        >>> unwrap(nn.DataParallel(layer)) is layer
        True
    """
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"A model must be an nn.Module, not a {type(model).__name__}; open the file of a model with pour.load."
        )
    if _is_compiled_code(model):
        raise UsageError(f"The model {_COMPILED_CODE}")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        inner = model.module if isinstance(model, parallel) else model._modules.get("_orig_mod")
        if inner is None:
            return model
        model = inner


def check_weights(model: nn.Module) -> None:
    """Raise UsageError if a weight of `model` has no values: on the meta device, or of a lazy layer that never ran.

    Examples:
        >>> check_weights(nn.LazyLinear(3))
        Traceback (most recent call last):
        pour.errors.UsageError: The weight 'weight' has no shape yet because its layer is lazy; run the model once on an
        example first.
    """
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            if is_lazy(tensor):
                problem = f"The weight {name!r} has no shape yet because its layer is lazy"
                raise UsageError(f"{problem}; run the model once on an example first.")
            if tensor.is_meta:
                problem = f"The weight {name!r} is on the meta device and has no values"
                raise UsageError(f"{problem}; build the model on the CPU or a GPU and load its weights first.")


def why_unreadable(model: nn.Module) -> str | None:
    """Return why the layers of `model` cannot be read or changed, and the remedy; None for plain modules.

    Examples:
        >>> why_unreadable(nn.Linear(2, 2)) is None
        True
    """
    for name, module in model.named_modules():
        part = f"The part {name!r} of the model" if name else "The model"
        if _is_compiled_code(module):
            return f"{part} {_COMPILED_CODE}"
        if type(module).__module__.startswith(_QUANTISED):
            return f"{part} is quantised; forget with the model before it was quantised, then quantise the result."
    return None


def _is_compiled_code(module: nn.Module) -> bool:
    """Return whether `module` is TorchScript or a graph of torch.export, whose parts are no layers."""
    is_graph = isinstance(module, torch.fx.GraphModule)
    return isinstance(module, torch.jit.ScriptModule) or (
        is_graph and any(type(child) is nn.Module for child in module.children())
    )


def libraries_of(model: nn.Module) -> set[str]:
    """Return the top-level packages that define the class of `model` and its base classes."""
    return {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
