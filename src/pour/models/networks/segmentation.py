"""Segmentation networks behind our convention: images in [0, 1] of any size in, a score for every pixel out."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pour.errors import UsageError
from pour.models.networks.normalize import NormalizedModel
from pour.models.output import scores_of
from pour.models.state import load_into
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SegmentationModel", "cell_labels", "load_encoder"]

# Where the libraries keep the part that has published weights of its own.
_ENCODERS = ("encoder.model", "encoder", "backbone", "segformer")


class SegmentationModel(NormalizedModel):
    """Normalise, enlarge, pad at the right and below to what the network takes, run it, and crop the scores back.

    Images (N, C, H, W) in [0, 1] in, scores (N, num_classes, H, W) out, brought to the images' size (bilinear) where
    the network leaves them at its own.

    Args:
        model: The network.
        mean: Channel means.
        std: Channel deviations.
        multiple: The network takes sides that are multiples of this; the border is repeated up to the next one.
        enlarge: Enlarge images by this factor first: thin things in small images are lost at a quarter of their size.

    Example:
        >>> model = SegmentationModel(nn.Conv2d(3, 5, 1), [0.5] * 3, [0.5] * 3, multiple=16)
        >>> model(torch.rand(2, 3, 18, 24)).shape
        torch.Size([2, 5, 18, 24])
    """

    def __init__(
        self, model: nn.Module, mean: Sequence[float], std: Sequence[float], *, multiple: int = 1, enlarge: int = 1
    ) -> None:
        super().__init__(model, mean, std)
        if enlarge < 1:
            raise UsageError(f"Images can be enlarged by 1, 2, ..., not by {enlarge}.")
        self.multiple = multiple
        self.enlarge = enlarge

    def frame(self, height: int, width: int) -> tuple[float, float]:
        """Height and width, in pixels of the image, of what the network is given: the image and the margin."""
        padded = (side * self.enlarge + -side * self.enlarge % self.multiple for side in (height, width))
        below, right = (side / self.enlarge for side in padded)
        return below, right

    def forward(self, images: Tensor) -> Tensor:
        """Scores of every pixel of ``images``."""
        height, width = images.shape[-2:]
        images = self.normalize(images)
        if self.enlarge > 1:
            images = F.interpolate(images, scale_factor=self.enlarge, mode="bilinear", align_corners=False)
        below, right = (-side % self.multiple for side in images.shape[-2:])
        padded = F.pad(images, (0, right, 0, below), mode="replicate") if below or right else images
        scores = scores_of(self.model(padded))
        if scores.shape[-2:] != padded.shape[-2:]:
            scores = F.interpolate(scores, size=padded.shape[-2:], mode="bilinear", align_corners=False)
        scores = scores[..., : images.shape[-2], : images.shape[-1]]
        if self.enlarge > 1:
            # Taking the mean of a pixel's parts undoes the enlargement without a shift.
            scores = F.avg_pool2d(scores, self.enlarge)
        return scores[..., :height, :width]

    def extra_repr(self) -> str:
        """Show the constants in ``print(model)``."""
        return f"multiple={self.multiple}, enlarge={self.enlarge}"


def cell_labels(model: nn.Module, labels: Tensor, size: tuple[int, int], *, nothing: int = -100) -> Tensor:
    """The label at the middle of every cell of a feature map: (N, h, w), ``nothing`` in the margin around the image.

    Args:
        model: Whose map it is; it knows the margin.
        labels: (N, H, W).
        size: h and w; a multiple of the map's gives several points to a cell.
        nothing: The label of cells without a pixel.

    Example:
        >>> cell_labels(nn.Conv2d(3, 2, 1), torch.arange(16).view(1, 4, 4), (2, 2)).tolist()
        [[[5, 7], [13, 15]]]
    """
    height, width = labels.shape[-2:]
    model = unwrap(model)
    frame = model.frame(height, width) if isinstance(model, SegmentationModel) else (height, width)
    for side, cells, whole in zip((-2, -1), size, frame, strict=True):
        length = labels.shape[side]
        places = ((torch.arange(cells, device=labels.device) + 0.5) * (whole / cells)).long()
        labels = labels.index_select(side, places.clamp(max=length - 1))
        outside = (places >= length).unsqueeze(-1) if side == -2 else places >= length
        labels = labels.masked_fill(outside, nothing)
    return labels


def load_encoder(network: nn.Module, state: Mapping[str, Tensor], *, source: str) -> bool:
    """Load the weights of a classifier into the encoder of a segmentation ``network``, where they fit it; say whether.

    What the encoder has no place for, the classifier's own head, is left out; everything else starts at random, with a
    warning. A file for the whole network fits no encoder, and is left to the caller.

    Args:
        network: Changed in place.
        state: Names and tensors.
        source: Where they come from, for the warning.
    """
    for place in _ENCODERS:
        try:
            encoder = network.get_submodule(place)
        except AttributeError:
            continue
        own = encoder.state_dict()
        if own and all(name in state and state[name].shape == own[name].shape for name in own):
            load_into(encoder, {name: state[name] for name in own}, source=source)
            warnings.warn(
                f"{source} holds weights for the encoder alone; the rest of the network starts from random weights.",
                stacklevel=4,
            )
            return True
    return False
