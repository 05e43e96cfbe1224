"""Batches of scenes, resident on the device, where image and mask are scaled, cropped and mirrored together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.data.loader import EpochLoader
from pour.data.scenes import IGNORED
from pour.errors import UsageError

if TYPE_CHECKING:
    from pour.data.scenes import Scenes

__all__ = ["NO_LABEL", "SceneAugment", "SceneLoader", "move_scenes"]

NO_LABEL = -100
"""Label of pixels that count for nothing in a batch: what ``torch.nn.functional.cross_entropy`` ignores by itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneAugment:
    """What training does to a scene.

    Example:
        >>> SceneAugment().draw(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 6])
    """

    smallest: float = 0.6
    """The smallest scale; where the scaled image does not fill the frame, the rest counts for nothing."""
    largest: float = 1.8
    """The largest scale, of which a part is cut out."""
    flip: bool = True
    """Mirror half of the images left to right."""
    light: float = 0.3
    """Largest relative change of contrast, and of brightness in shares of the range."""

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest:
            raise UsageError(f"Scales must be above 0 and in order, but are {self.smallest} and {self.largest}.")
        if not 0 <= self.light < 1:
            raise UsageError(f"The change of light is 0 or more and below 1, but is {self.light}.")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw what happens to each of ``count`` scenes: (count, 6) of scale, down, right, mirror, contrast, light."""
        uniform = torch.rand(count, 6, generator=generator)
        # Even on a logarithmic axis, so that halving is as likely as doubling.
        uniform[:, 0] = self.smallest * (self.largest / self.smallest) ** uniform[:, 0]
        uniform[:, 3] = (uniform[:, 3] < 0.5 * self.flip).float()
        uniform[:, 4] = 1 + self.light * (2 * uniform[:, 4] - 1)
        uniform[:, 5] = 0.5 * self.light * (2 * uniform[:, 5] - 1)
        return uniform


def move_scenes(images: Tensor, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the moves of :meth:`SceneAugment.draw`; images are read bilinearly, masks at the nearest pixel.

    Args:
        images: (n, H, W, C) uint8.
        masks: (n, H, W) integers.
        moves: (n, 6).

    Returns:
        Images (n, C, H, W), floats in [0, 1], and masks (n, H, W) with :data:`IGNORED` beyond the border.
    """
    height, width = masks.shape[1:]
    scale, down, right, mirror, contrast, light = moves[:, :, None].unbind(1)
    rows, columns = (
        (torch.arange(size, device=masks.device) + 0.5 + shift * (scale * size - size)) / scale - 0.5
        for size, shift in ((height, down), (width, right))
    )
    columns = torch.where(mirror == 1, columns.flip(1), columns)
    unit = [2 * (places + 0.5) / size - 1 for places, size in ((columns, width), (rows, height))]
    grid = torch.stack([unit[0][:, None].expand(-1, height, -1), unit[1][:, :, None].expand(-1, -1, width)], dim=-1)
    floats = images.permute(0, 3, 1, 2).float() / 255
    moved = F.grid_sample(floats, grid, mode="bilinear", padding_mode="border", align_corners=False)
    middle = moved.mean(dim=(1, 2, 3), keepdim=True)
    moved = (middle + contrast[..., None, None] * (moved - middle) + light[..., None, None]).clamp(0, 1)

    nearest = [places.round().long() for places in (rows, columns)]
    inside = [(places >= 0) & (places < size) for places, size in zip(nearest, (height, width), strict=True)]
    picked = [places.clamp(0, size - 1) for places, size in zip(nearest, (height, width), strict=True)]
    index = torch.arange(len(masks), device=masks.device)[:, None, None]
    labels = masks[index, picked[0][:, :, None], picked[1][:, None, :]]
    return moved, labels.where(inside[0][:, :, None] & inside[1][:, None, :], IGNORED)


class SceneLoader(EpochLoader):
    """Batches of scenes, which stay on the device.

    Args:
        scenes: Images and masks.
        batch_size: Number of scenes per batch, at most the number of scenes.
        device: Device of the batches.
        seed: Fixes everything random.
        shuffle: Draw a new order for each epoch.
        augment: Moves of the scenes; None leaves the scenes as they are.
        drop_last: Leave out the last batch of an epoch if it is not full.

    Iterating gives ``(images, labels)``: (b, 3, H, W), uint8 or, if augmented, floats in [0, 1]; and int64 (b, H, W)
    with :data:`NO_LABEL` for ignored pixels.

    Example:
        >>> import numpy as np
        >>> from pour.data.scenes import Scenes
        >>> scenes = Scenes(np.zeros((3, 4, 6, 3), np.uint8), np.zeros((3, 4, 6), np.uint8), num_classes=2)
        >>> [tuple(labels.shape) for images, labels in SceneLoader(scenes, batch_size=2, device="cpu")]
        [(2, 4, 6), (1, 4, 6)]
    """

    def __init__(
        self,
        scenes: Scenes,
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int = 0,
        shuffle: bool = False,
        augment: SceneAugment | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(
            len(scenes),
            batch_size=batch_size,
            device=device,
            seed=seed,
            shuffle=shuffle,
            augment=augment,
            drop_last=drop_last,
        )
        self._images = torch.as_tensor(scenes.images).to(self.device)
        self._masks = torch.as_tensor(scenes.masks).to(self.device)

    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gather and move the scenes of a batch."""
        rows = order.to(self.device)
        images, masks = self._images[rows], self._masks[rows]
        if moves is None:
            images = images.permute(0, 3, 1, 2)
        else:
            images, masks = move_scenes(images, masks, moves.to(self.device))
        labels = masks.long()
        return images, labels.where(labels != IGNORED, NO_LABEL)
