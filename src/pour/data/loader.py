"""Batches without worker processes: images stay on the device and are shuffled and augmented there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NO_LABEL", "DeviceLoader", "EpochLoader"]

NO_LABEL = -100
"""Label of void pixels in a batch, which ``torch.nn.functional.cross_entropy`` ignores by default."""

_SHARE_OF_FREE_MEMORY = 0.25
_CHUNK_BYTES = 512 * 2**20


class Moves(Protocol):
    """Random moves of images, such as :class:`~pour.data.augment.Augment`."""

    @property
    def memory(self) -> int:
        """Memory of a moved image relative to the image."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return one row of moves per image."""
        ...

    def move(self, images: Tensor, labels: Tensor, index: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images ``index`` of (n, H, W, C), moved and as (m, C, H, W), and their labels."""
        ...


class EpochLoader(ABC):
    """Batches that are read epoch by epoch.

    Every order and move is drawn on the CPU from ``(seed, epoch)`` alone. The same seed gives the same batches on any
    device, and an interrupted run can start again at any epoch.

    Args:
        count: Number of samples.
        batch_size: Number of samples per batch, at most ``count``.
        device: Device of the batches.
        seed: Fixes everything random.
        shuffle: Draw a new order for each epoch.
        augment: Draws the moves of the samples; None leaves the samples as they are.
        drop_last: Leave out the last batch of an epoch if it is not full.
    """

    def __init__(
        self,
        count: int,
        *,
        batch_size: int,
        device: torch.device | str,
        seed: int = 0,
        shuffle: bool = False,
        augment: Moves | None = None,
        drop_last: bool = False,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"The batch size must be at least 1, but is {batch_size}.")
        if not count:
            raise UsageError("There are no samples to read.")
        self.device = torch.device(device)
        self.num_images = count
        """Number of samples."""
        self.batch_size = min(batch_size, count)
        """Number of samples in a full batch."""
        self._seed = seed
        self._shuffle = shuffle
        self._augment = augment
        self._drop_last = drop_last
        self._next_epoch = 0

    @abstractmethod
    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the samples with the indices ``order``, moved by ``moves``, and their labels on the device."""

    @property
    def samples_per_read(self) -> int:
        """Number of samples of one call of :meth:`read`, a multiple of the batch size."""
        return self.batch_size

    def __len__(self) -> int:
        """Number of batches per epoch."""
        whole, rest = divmod(self.num_images, self.batch_size)
        return whole if self._drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of one epoch; each call to ``iter`` starts the next epoch."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of epoch ``number``, the same ones at every call."""
        order, moves = self._draw(number)
        usable = len(self) * self.batch_size if self._drop_last else self.num_images
        step = self.samples_per_read
        for start in range(0, usable, step):
            part = slice(start, min(start + step, usable))
            images, labels = self.read(order[part], None if moves is None else moves[part])
            yield from zip(torch.split(images, self.batch_size), torch.split(labels, self.batch_size), strict=True)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        seed = int(np.random.SeedSequence([self._seed, epoch]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        order = torch.arange(self.num_images)
        if self._shuffle:
            order = torch.randperm(self.num_images, generator=generator)
        return order, None if self._augment is None else self._augment.draw(self.num_images, generator)


class DeviceLoader(EpochLoader):
    """Batches of images, which stay on the device if they fit and are otherwise copied there in chunks.

    Args:
        images: Images, (n, H, W, C) uint8.
        labels: Labels, (n,) or one per pixel (n, H, W), integers.
        batch_size: Number of images per batch, at most the number of images.
        device: Device of the batches.
        seed: Fixes everything random.
        shuffle: Draw a new order for each epoch.
        augment: Random moves; None leaves the images as they are.
        drop_last: Leave out the last batch of an epoch if it is not full.
        resident: Keep the images on the device; by default if they take at most a quarter of its free memory.
        void: Label that becomes :data:`NO_LABEL` in the batches.

    Iterating gives ``(images, labels)``: (b, C, H, W), uint8 in channels-last memory or moved scenes as floats in
    [0, 1], and int64 labels.

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
        resident: bool | None = None,
        void: int | None = None,
        **options: Any,
    ) -> None:
        source = torch.as_tensor(images)
        if source.ndim != 4 or source.dtype != torch.uint8:
            raise UsageError(
                f"Images must be uint8 of shape (n, height, width, channels), not {source.dtype} {tuple(source.shape)}."
            )
        if len(source) != len(labels) or not len(source):
            raise UsageError(
                f"There are {len(source)} images for {len(labels)} labels; both need the same number, at least one."
            )
        super().__init__(len(source), **options)
        if resident is None and self.device.type == "cuda":
            resident = source.numel() <= _SHARE_OF_FREE_MEMORY * torch.cuda.mem_get_info(self.device)[0]
        self.resident = resident is not False
        self._images = source.to(self.device) if self.resident else source
        self._labels = torch.as_tensor(labels).to(self.device)
        self._void = void

    @property
    def samples_per_read(self) -> int:
        """Number of images per chunk."""
        memory = 1 if self._augment is None else self._augment.memory
        return max(1, _CHUNK_BYTES // (self._images[0].numel() * self.batch_size * memory)) * self.batch_size

    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Gather and move the images of a chunk."""
        index = order.to(self.device)
        labels = self._labels[index]
        images = self._images
        if not self.resident:
            images = images[order]
            if self.device.type == "cuda":
                images = images.pin_memory()
            images = images.to(self.device, non_blocking=True)
            index = torch.arange(len(order), device=self.device)
        if moves is None or self._augment is None:
            images = images[index].permute(0, 3, 1, 2)
        else:
            images, labels = self._augment.move(images, labels, index, moves.to(self.device))
        labels = labels.long()
        return images, labels if self._void is None else labels.where(labels != self._void, NO_LABEL)
