"""Networks from other libraries behind our convention: images in [0, 1] in, scores out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from pour.models.networks.normalize import Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NormalizedModel", "resized"]


def resized(images: Tensor, side: int | None) -> Tensor:
    """Images (N, C, H, W) scaled to ``side`` x ``side``; as they are where that is None."""
    if side is None or images.shape[-2:] == (side, side):
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False, antialias=True)


class NormalizedModel(nn.Module):
    """Normalise, resize to the network's fixed input size where it has one, run the network, return its scores.

    Images (N, C, H, W) in [0, 1] in, scores (N, num_classes) out.
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], *, resize: int | None = None
    ) -> None:
        super().__init__()
        self.normalize = Normalize(mean, std)
        self.model = model
        self.resize = resize

    def forward(self, images: Tensor) -> Tensor:
        """Scores of ``images``."""
        images = self.normalize(images)
        output = self.model(resized(images, self.resize))
        scores: Tensor = output if isinstance(output, Tensor) else output.logits
        return scores

    def extra_repr(self) -> str:
        """Show the input size in ``print(model)``, which also names the network in a cache of features."""
        return f"resize={self.resize}"
