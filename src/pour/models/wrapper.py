"""Networks from other libraries behind our convention: images in [0, 1] in, scores out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.nn import functional as F

from pour.models.normalize import Normalize

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NormalizedModel"]


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
        if self.resize is not None and images.shape[-2:] != (self.resize, self.resize):
            size = (self.resize, self.resize)
            images = F.interpolate(images, size=size, mode="bilinear", align_corners=False, antialias=True)
        output = self.model(images)
        scores: Tensor = output if isinstance(output, Tensor) else output.logits
        return scores
