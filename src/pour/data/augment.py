"""Random augmentation of images, and of scenes with their masks, on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from pour.errors import UsageError

__all__ = ["IGNORED", "Augment", "SceneAugment", "gather_images", "move_scenes"]

IGNORED = 255
"""Label of void pixels in a mask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """Random moves of images: shift each image with a reflected border, and mirror half of the images.

    Examples:
        >>> Augment.for_images(32)
        Augment(padding=4, flip=True)
        >>> Augment.for_images(8, flip=False)
        Augment(padding=1, flip=False)
    """

    memory: ClassVar[int] = 1
    """Memory of a moved image relative to the image."""

    padding: int = 4
    """Largest shift in pixels, in each direction."""
    flip: bool = True
    """Mirror half of the images left to right."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise UsageError(f"The padding of a random crop must not be negative, but is {self.padding}.")

    @classmethod
    def for_images(cls, side: int, *, flip: bool = True) -> Augment:
        """Return moves with the usual shift for images of this size: an eighth of the side, 4 pixels at 32."""
        return cls(padding=side // 8, flip=flip)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random moves of `count` images, (count, 3): shift down, shift right, and 1 for a mirrored image."""
        shift = torch.randint(-self.padding, self.padding + 1, (count, 2), generator=generator)
        mirror = torch.randint(0, 2 if self.flip else 1, (count, 1), generator=generator)
        return torch.cat([shift, mirror], dim=1)

    def move(self, images: Tensor, labels: Tensor, index: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images `index` of (n, H, W, C), moved and as (m, C, H, W), and their labels."""
        return gather_images(images, index, moves).permute(0, 3, 1, 2), labels


@dataclass(frozen=True, kw_only=True, slots=True)
class SceneAugment:
    """Random moves of scenes: scale, crop and mirror image and mask together, and change the light of the image.

    Examples:
        >>> SceneAugment().draw(2, torch.Generator().manual_seed(0)).shape
        torch.Size([2, 6])
    """

    memory: ClassVar[int] = 64
    """Memory of a moved scene relative to its image: floats, and the grid from which they are read."""

    smallest: float = 0.6
    """Smallest scale. The part of the frame that the scaled image does not fill is void."""
    largest: float = 1.8
    """Largest scale. A part of the scaled image fills the frame."""
    flip: bool = True
    """Mirror half of the images left to right."""
    light: float = 0.3
    """Largest relative change of contrast, and of brightness in shares of the range."""

    def __post_init__(self) -> None:
        if not 0 < self.smallest <= self.largest:
            raise UsageError(f"Scales must be above 0 and in order, but are {self.smallest} and {self.largest}.")
        if not 0 <= self.light < 1:
            raise UsageError(f"The change of light must be at least 0 and below 1, but is {self.light}.")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return random moves of `count` scenes, (count, 6): scale, down, right, mirror, contrast, light."""
        uniform = torch.rand(count, 6, generator=generator)
        # Scales are uniform on a logarithmic axis, so that halving is as likely as doubling.
        uniform[:, 0] = self.smallest * (self.largest / self.smallest) ** uniform[:, 0]
        uniform[:, 3] = (uniform[:, 3] < 0.5 * self.flip).float()
        uniform[:, 4] = 1 + self.light * (2 * uniform[:, 4] - 1)
        uniform[:, 5] = 0.5 * self.light * (2 * uniform[:, 5] - 1)
        return uniform

    def move(self, images: Tensor, labels: Tensor, index: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images `index` of (n, H, W, C), moved and as floats (m, C, H, W), and their masks."""
        return move_scenes(images[index], labels, moves)


def gather_images(images: Tensor, index: Tensor, moves: Tensor) -> Tensor:
    """Return some images with their moves, in one gather.

    Args:
        images: Images, (n, H, W, C) of any dtype.
        index: Indices of the images, (m,).
        moves: Moves from `Augment.draw`, (m, 3).

    Returns:
        Images, (m, H, W, C). Pixels beyond the border are reflected without a second border.

    Examples:
        >>> images = torch.arange(9).reshape(1, 3, 3, 1)
        >>> gather_images(images, torch.tensor([0]), torch.tensor([[0, 1, 0]]))[0, :, :, 0]
        tensor([[1, 2, 1],
                [4, 5, 4],
                [7, 8, 7]])
    """
    height, width = images.shape[1:3]
    down, right, mirror = moves.unbind(1)
    rows = _reflect(torch.arange(height, device=images.device) + down[:, None], height)
    columns = _reflect(torch.arange(width, device=images.device) + right[:, None], width)
    columns = torch.where(mirror[:, None] == 1, columns.flip(1), columns)
    return images[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _reflect(position: Tensor, size: int) -> Tensor:
    """Return positions in 0..size-1, with those outside reflected at the first and last pixel."""
    if size == 1:
        return torch.zeros_like(position)
    period = 2 * (size - 1)
    folded = position.remainder(period)
    return torch.where(folded < size, folded, period - folded)


def move_scenes(images: Tensor, masks: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Apply the moves of `SceneAugment.draw`: images are interpolated, masks are read at the nearest pixel.

    Args:
        images: Images, (n, H, W, C) uint8.
        masks: Masks, (n, H, W) integers.
        moves: Moves, (n, 6).

    Returns:
        Images (n, C, H, W), floats in [0, 1], and masks (n, H, W) with `IGNORED` beyond the border.
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
