"""What a method that writes into a layer must know of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_weight"]


def check_weight(layer: nn.Module, name: str, method: str) -> None:
    """Raise where ``layer`` computes its weight or bias from other parameters, so that what is written there is lost.

    Args:
        layer: a linear layer or convolution.
        name: what the model calls it.
        method: what is going to write.
    """
    # A computed weight is no parameter of its own; a layer may do without a bias.
    if "weight" not in layer._parameters or (layer.bias is not None and "bias" not in layer._parameters):
        raise UsageError(
            f"The layer {name!r} computes its weight (a parametrization such as weight norm), so {method} cannot "
            "change it; make it plain with torch.nn.utils.parametrize.remove_parametrizations first."
        )
