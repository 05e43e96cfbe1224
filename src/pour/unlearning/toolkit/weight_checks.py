"""Check that a layer stores its weight, before a method changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["check_weight"]


def check_weight(layer: nn.Module, name: str, method: str) -> None:
    """Raise UsageError if `layer` computes its weight or bias from other parameters, so that a change would be lost.

    Args:
        layer: Linear layer or convolution.
        name: Name of the layer in the model.
        method: Name of the method that changes the weight.
    """
    # A computed weight is no parameter of the layer. The bias may be None.
    if "weight" not in layer._parameters or (layer.bias is not None and "bias" not in layer._parameters):
        raise UsageError(
            f"The layer {name!r} computes its weight (a parametrization such as weight norm), so {method} cannot "
            "change it; make it plain with torch.nn.utils.parametrize.remove_parametrizations first."
        )
