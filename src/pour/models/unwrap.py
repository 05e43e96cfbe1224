"""Take a network out of the wrappers of PyTorch, and name the libraries that define it."""

from __future__ import annotations

import torch
from torch import nn

from pour.errors import UsageError

__all__ = ["libraries_of", "unwrap"]


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside ``torch.compile`` and the wrappers of parallel training.

    Raises:
        UsageError: ``model`` is no ``nn.Module``, or a TorchScript module, which cannot be changed.

    Example:
        >>> layer = nn.Linear(4, 3)
        >>> unwrap(nn.DataParallel(layer)) is layer
        True
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"A model is needed (nn.Module), not a {type(model).__name__}; pour.load opens a file of one.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("The model is a TorchScript module, which cannot be changed; give the nn.Module it came from.")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        inner = model.module if isinstance(model, parallel) else model._modules.get("_orig_mod")
        if inner is None:
            return model
        model = inner


def libraries_of(model: nn.Module) -> set[str]:
    """Return the top-level packages that define the class of ``model`` and its base classes."""
    return {cls.__module__.partition(".")[0] for cls in type(model).__mro__}
