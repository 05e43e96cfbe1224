"""Segmentation networks that take images in [0, 1] of any size and return scores of every pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pour.errors import UsageError, warn
from pour.models.networks.normalize import NormalizedModel
from pour.models.output import scores_of
from pour.models.prefixes import without_shared_prefix
from pour.models.state import load_into
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["SegmentationModel", "cell_labels", "load_encoder"]

# Names of the submodule for which the libraries publish weights.
_ENCODERS = ("encoder.model", "encoder", "backbone", "segformer")


class SegmentationModel(NormalizedModel):
    """Normalise and enlarge images, pad them at the right and below, run the network, and crop the scores.

    It takes images (N, C, H, W) in [0, 1] and returns scores (N, num_classes, H, W). If the network returns smaller
    maps of scores, they are interpolated.

    Args:
        model: Network.
        mean: Channel means.
        std: Channel deviations.
        multiple: The sides of the network's images are multiples of this number. Padding repeats the border.
        enlarge: Factor by which images are enlarged, because thin objects disappear at a quarter of their size.

    Examples:
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
        """Return height and width of the padded image, in pixels of the image."""
        padded = (side * self.enlarge + -side * self.enlarge % self.multiple for side in (height, width))
        below, right = (side / self.enlarge for side in padded)
        return below, right

    def forward(self, images: Tensor) -> Tensor:
        """Compute the scores of every pixel of `images`."""
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
            # The mean over the parts of a pixel reverses the enlargement without a shift.
            scores = F.avg_pool2d(scores, self.enlarge)
        return scores[..., :height, :width]

    def extra_repr(self) -> str:
        """Return the options for `print(model)`."""
        return f"multiple={self.multiple}, enlarge={self.enlarge}"


def cell_labels(model: nn.Module, labels: Tensor, size: tuple[int, int], *, nothing: int = -100) -> Tensor:
    """Return the label at the centre of every cell of a feature map, (N, h, w), and `nothing` in the padding.

    Args:
        model: Model of the feature map, which determines the padding.
        labels: (N, H, W).
        size: h and w. A multiple of the size of the map returns several labels per cell.
        nothing: Label of cells without a pixel.

    Examples:
        >>> cell_labels(nn.Conv2d(3, 2, 1), torch.arange(16).view(1, 4, 4), (2, 2)).tolist()
        [[[5, 7], [13, 15]]]
    """
    height, width = labels.shape[-2:]
    model = unwrap(model)
    frame = model.frame(height, width) if isinstance(model, SegmentationModel) else (height, width)
    for side, cells, padded in zip((-2, -1), size, frame, strict=True):
        length = labels.shape[side]
        centres = ((torch.arange(cells, device=labels.device) + 0.5) * (padded / cells)).long()
        labels = labels.index_select(side, centres.clamp(max=length - 1))
        is_padding = (centres >= length).unsqueeze(-1) if side == -2 else centres >= length
        labels = labels.masked_fill(is_padding, nothing)
    return labels


def load_encoder(network: nn.Module, state: Mapping[str, Tensor], *, source: str) -> bool:
    """Load the weights of a classifier into the encoder of a segmentation network. Return False if they do not fit.

    The head of the classifier is ignored. The rest of the network starts at random, with a warning. The weights of a
    whole segmentation network do not fit its encoder.

    Args:
        network: Segmentation network, changed in place.
        state: Tensors by name.
        source: File of the tensors, for the warning.
    """
    submodules = dict(network.named_modules())
    state = {**without_shared_prefix(state), **state}
    for encoder in (submodules[name] for name in _ENCODERS if name in submodules):
        expected = encoder.state_dict()
        if expected and all(name in state and state[name].shape == expected[name].shape for name in expected):
            load_into(encoder, {name: state[name] for name in expected}, source=source)
            warn(
                f"{source} contains weights for the encoder alone; the rest of the network starts from random weights."
            )
            return True
    return False
