"""Batches of scenes, resident on the device, where image and mask are scaled, cropped and mirrored together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pour.data.scenes import IGNORED
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class SceneLoader:
    """Batches of scenes that live on the device.

    Every order and move is drawn on the CPU from ``(seed, epoch)`` alone, so that the same seed gives the same batches
    on any device.

    Args:
        scenes: the images and masks.
        batch_size: scenes to a batch; never more than there are.
        device: where the batches are needed.
        seed: fixes everything random.
        shuffle: draw a new order for each epoch.
        augment: how scenes are moved, or None for the scenes as they are.
        drop_last: leave out the last batch of an epoch where it is not full.

    Iterating gives ``(images, labels)``: (b, 3, H, W), uint8 or, where augmented, floats in [0, 1]; and int64
    (b, H, W) with :data:`NO_LABEL` where a pixel counts for nothing.

    Example:
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
        if batch_size < 1:
            raise UsageError(f"The batch size must be at least 1, but is {batch_size}.")
        self.device = torch.device(device)
        self._images = torch.as_tensor(scenes.images).to(self.device)
        self._masks = torch.as_tensor(scenes.masks).to(self.device)
        self._batch_size = min(batch_size, len(scenes))
        self._seed = seed
        self._shuffle = shuffle
        self._augment = augment
        self._drop_last = drop_last
        self._next_epoch = 0

    @property
    def batch_size(self) -> int:
        """Scenes to a full batch."""
        return self._batch_size

    def __len__(self) -> int:
        """Batches to an epoch."""
        whole, rest = divmod(len(self._images), self._batch_size)
        return whole if self._drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; each call to ``iter`` goes on to the next epoch's order."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of epoch ``number``, the same at every call."""
        count = len(self._images)
        generator = torch.Generator().manual_seed(
            int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0])
        )
        order = torch.randperm(count, generator=generator) if self._shuffle else torch.arange(count)
        moves = None if self._augment is None else self._augment.draw(count, generator).to(self.device)
        order = order.to(self.device)
        for start in range(0, len(self) * self._batch_size, self._batch_size):
            piece = slice(start, min(start + self._batch_size, count))
            images, masks = self._images[order[piece]], self._masks[order[piece]]
            if moves is None:
                images = images.permute(0, 3, 1, 2)
            else:
                images, masks = move_scenes(images, masks, moves[piece])
            labels = masks.long()
            yield images, labels.where(labels != IGNORED, NO_LABEL)
