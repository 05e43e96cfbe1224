"""A small image encoder for a space of text embeddings: a ResNet and a linear visual projection."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.networks.resnet import ResNet

__all__ = ["ImageTextEncoder"]


class ImageTextEncoder(nn.Module):
    """The image tower of a CLIP-style pair. The text tower is a frozen sentence encoder and no part of this module.

    It takes images (N, C, H, W) in [0, 1] and returns embeddings (N, d), not normalised, like CLIP's
    `visual_projection`.

    Args:
        width_of_text: Width d of the text embeddings.
        resnet: Options of `ResNet`: width, blocks, in_channels, mean, std.

    Examples:
        >>> import torch
        >>> ImageTextEncoder(384, width=8, blocks=(1, 1))(torch.rand(2, 3, 32, 32)).shape
        torch.Size([2, 384])
    """

    def __init__(self, width_of_text: int, **resnet: Any) -> None:
        super().__init__()
        if width_of_text < 2:
            raise UsageError(f"Text embeddings need at least 2 dimensions, but have {width_of_text}.")
        tower = ResNet(2, **resnet)
        features = tower.head.in_features
        # The tower ends in its pooled features. The projection into the text space is another layer.
        tower.head = nn.Identity()  # type: ignore[assignment]
        self.visual = tower
        self.visual_projection = nn.Linear(features, width_of_text, bias=False)

    def encode_image(self, images: Tensor) -> Tensor:
        """Compute the embeddings (N, d), not normalised."""
        embedding: Tensor = self.visual_projection(self.visual(images))
        return embedding

    def forward(self, images: Tensor) -> Tensor:
        """Compute the embeddings, as `encode_image` does."""
        return self.encode_image(images)
