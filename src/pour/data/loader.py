"""Batches without worker processes: the images live on the device and are cropped, mirrored and shuffled there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pour.data.augment import Augment, gather_images
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DeviceLoader"]

# A quarter of the device's free memory holds the images; the augmented copy of a chunk takes as much again.
_SHARE_OF_FREE_MEMORY = 0.25
_CHUNK_BYTES = 512 * 2**20


class DeviceLoader:
    """Batches of one split, resident on the device where it fits and streamed in chunks where it does not.

    Every order, shift and mirror is drawn on the CPU from ``(seed, epoch)`` alone: the same seed gives the same
    batches on any device, resident or streamed, and an interrupted run can start again at any epoch.

    Args:
        images: (n, H, W, C) uint8, a numpy array or a tensor.
        labels: (n,) integers.
        batch_size: images to a batch; never more than there are images.
        device: where the batches are needed.
        seed: fixes everything random.
        shuffle: draw a new order for each epoch.
        augment: random crop and flip, or None for the images as they are.
        drop_last: leave out the last batch of an epoch where it is not full.
        resident: keep the images on the device; by default, if they take at most a quarter of its free memory.

    Iterating gives ``(images, labels)``: uint8 (b, C, H, W) in channels-last memory, int64 (b,).

    Example:
        >>> loader = DeviceLoader(np.zeros((10, 8, 8, 1), np.uint8), np.arange(10) % 2, batch_size=4, device="cpu")
        >>> [tuple(images.shape) for images, labels in loader]
        [(4, 1, 8, 8), (4, 1, 8, 8), (2, 1, 8, 8)]
    """

    def __init__(
        self,
        images: np.ndarray | Tensor,
        labels: np.ndarray | Tensor,
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int = 0,
        shuffle: bool = False,
        augment: Augment | None = None,
        drop_last: bool = False,
        resident: bool | None = None,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"The batch size must be at least 1, but is {batch_size}.")
        self.device = torch.device(device)
        source = torch.as_tensor(images)
        if source.ndim != 4 or source.dtype != torch.uint8:
            raise UsageError(
                f"Images must be uint8 of shape (n, height, width, channels), not {source.dtype} {tuple(source.shape)}."
            )
        if len(source) != len(labels) or not len(source):
            raise UsageError(
                f"There are {len(source)} images for {len(labels)} labels; both need the same number, at least one."
            )
        size = source.numel()
        self.resident = size <= _room_for_images(self.device) if resident is None else resident
        self._images = source.to(self.device) if self.resident else source
        self._labels = torch.as_tensor(labels, dtype=torch.int64)
        self._labels_on_device = self._labels.to(self.device)
        self._batch_size = min(batch_size, len(source))
        self._seed = seed
        self._shuffle = shuffle
        self._augment = augment
        self._drop_last = drop_last
        self._next_epoch = 0

    @property
    def batch_size(self) -> int:
        """Images to a full batch."""
        return self._batch_size

    @property
    def num_images(self) -> int:
        """Images in the split."""
        return len(self._labels)

    def __len__(self) -> int:
        """Batches to an epoch."""
        whole, rest = divmod(self.num_images, self._batch_size)
        return whole if self._drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch; each call to ``iter`` goes on to the next epoch's order."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of epoch ``number``, the same at every call."""
        order, moves = self._draw(number)
        usable = len(self) * self._batch_size if self._drop_last else self.num_images
        per_image = self._images[0].numel()
        step = max(1, _CHUNK_BYTES // (per_image * self._batch_size)) * self._batch_size
        for start in range(0, usable, step):
            piece = slice(start, min(start + step, usable))
            images, labels = self._chunk(order[piece], None if moves is None else moves[piece])
            yield from zip(torch.split(images, self._batch_size), torch.split(labels, self._batch_size), strict=True)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(int(np.random.SeedSequence([self._seed, epoch]).generate_state(1)[0]))
        count = self.num_images
        order = torch.randperm(count, generator=generator) if self._shuffle else torch.arange(count)
        return order, None if self._augment is None else self._augment.draw(count, generator)

    def _chunk(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        on_device = order.to(self.device)
        if moves is not None:
            moves = moves.to(self.device)
        if self.resident:
            images = gather_images(self._images, on_device, moves)
        else:
            fetched = self._images[order]
            if self.device.type == "cuda":
                fetched = fetched.pin_memory()
            fetched = fetched.to(self.device, non_blocking=True)
            images = gather_images(fetched, torch.arange(len(order), device=self.device), moves)
        return images.permute(0, 3, 1, 2), self._labels_on_device[on_device]


def _room_for_images(device: torch.device) -> float:
    """Bytes that resident images may take on ``device``."""
    if device.type == "cuda":
        return _SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(device)[0]
    return float("inf")
