"""Advice about images on which a model fails: their channels, type or device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from pour.models.networks.normalize import Normalize

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["input_advice"]


def input_advice(model: nn.Module, images: Tensor) -> str | None:
    """Return the fault of images on which `model` failed and the remedy, or None if the fault is unknown.

    Examples:
        >>> import torch
        >>> input_advice(nn.Conv2d(3, 4, 1), torch.zeros(2, 8, 8, 3))
        'the channels are last; pass images.permute(0, 3, 1, 2)'
    """
    shape, channels = tuple(images.shape), _channels(model)
    weight = next((value for value in model.parameters() if value.is_floating_point()), None)
    if channels is not None and len(shape) in (3, 4) and (advice := _shape_advice(shape, channels)) is not None:
        return advice
    if weight is None:
        return None
    if images.device != weight.device:
        return (
            f"the images are on the device {images.device}, and the model is on {weight.device}; move one to the other"
        )
    if images.is_floating_point() and images.dtype != weight.dtype:
        return f"the images are {images.dtype}, and the model is {weight.dtype}; pass images.to({weight.dtype})"
    return None


def _channels(model: nn.Module) -> int | None:
    """Return the number of image channels that the first layer takes, or None if it does not take images."""
    for module in model.modules():
        if isinstance(module, Normalize):
            return module.mean.numel()
        if isinstance(module, nn.Conv2d):
            return module.in_channels
    return None


def _shape_advice(shape: tuple[int, ...], channels: int) -> str | None:
    """Return the fault of images of this shape and the remedy, or None if their channels fit the model."""
    takes = f"the model takes {channels if channels > 1 else 'grey images'}"
    if len(shape) == 3:
        if shape[0] == channels:
            return "the shape is that of one image; pass a batch, images.unsqueeze(0)"
        repeated = f".expand(-1, {channels}, -1, -1)" if channels > 1 else ""
        return f"the images have no channels, and {takes}; pass images.unsqueeze(1){repeated}"
    if shape[1] == channels:
        return None
    if shape[3] == channels:
        return "the channels are last; pass images.permute(0, 3, 1, 2)"
    if shape[1] == 1:
        return f"the images are grey, and {takes} channels; pass images.expand(-1, {channels}, -1, -1)"
    remedy = "images.mean(dim=1, keepdim=True)" if channels == 1 else f"images with {channels} channels"
    return f"the images have {shape[1]} channels, and {takes}; pass {remedy}"
