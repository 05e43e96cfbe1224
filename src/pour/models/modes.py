"""Run a model in evaluation mode without a lasting change."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

__all__ = ["evaluating"]


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put `model` in evaluation mode. Afterwards restore the modes of its modules and the random state."""
    modes = [(module, module.training) for module in model.modules()]
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    model.eval()
    try:
        with torch.random.fork_rng(devices=list(devices)):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
