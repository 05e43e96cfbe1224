"""Random crops and flips of whole batches, made on the device by one gather."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pour.errors import UsageError

__all__ = ["Augment", "gather_images"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """What training does to an image: shift it (the border is reflected) and mirror it.

    Example:
        >>> Augment.for_images(32)
        Augment(padding=4, flip=True)
        >>> Augment.for_images(8, flip=False)
        Augment(padding=1, flip=False)
    """

    padding: int = 4
    """The largest shift in pixels, in each direction."""
    flip: bool = True
    """Mirror half of the images left to right."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise UsageError(f"The padding of a random crop must not be negative, but is {self.padding}.")

    @classmethod
    def for_images(cls, side: int, *, flip: bool = True) -> Augment:
        """The usual crop for images of this size: an eighth of the side, 4 pixels at 32."""
        return cls(padding=side // 8, flip=flip)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw what happens to each of ``count`` images: (count, 3) of shift down, shift right, mirror or not."""
        shift = torch.randint(-self.padding, self.padding + 1, (count, 2), generator=generator)
        mirror = torch.randint(0, 2 if self.flip else 1, (count, 1), generator=generator)
        return torch.cat([shift, mirror], dim=1)


def gather_images(images: Tensor, index: Tensor, moves: Tensor | None = None) -> Tensor:
    """Pick images and apply their moves, all in one gather.

    Args:
        images: (n, H, W, C) of any dtype.
        index: (m,) which images, in which order.
        moves: (m, 3) from :meth:`Augment.draw`, or None to leave the images as they are.

    Returns:
        (m, H, W, C); pixels beyond the border are mirrored back, the border itself not repeated.

    Example:
        >>> images = torch.arange(9).reshape(1, 3, 3, 1)
        >>> gather_images(images, torch.tensor([0]), torch.tensor([[0, 1, 0]]))[0, :, :, 0]
        tensor([[1, 2, 1],
                [4, 5, 4],
                [7, 8, 7]])
    """
    if moves is None:
        return images[index]
    height, width = images.shape[1:3]
    down, right, mirror = moves.unbind(1)
    rows = _reflect(torch.arange(height, device=images.device) + down[:, None], height)
    columns = _reflect(torch.arange(width, device=images.device) + right[:, None], width)
    columns = torch.where(mirror[:, None] == 1, columns.flip(1), columns)
    return images[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _reflect(position: Tensor, size: int) -> Tensor:
    """Fold positions outside 0..size-1 back by mirroring at the first and last pixel."""
    if size == 1:
        return torch.zeros_like(position)
    period = 2 * (size - 1)
    folded = position.remainder(period)
    return torch.where(folded < size, folded, period - folded)
