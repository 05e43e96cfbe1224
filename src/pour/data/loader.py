"""Batches without worker processes: images stay on the device, or are decoded ahead of their use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pour.data.stored_images import decoding_threads
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from concurrent.futures import Future

    from pour.data.stored_images import StoredImages

__all__ = ["NO_LABEL", "DeviceLoader", "EpochLoader", "FileLoader"]

NO_LABEL = -100
"""Label of void pixels in a batch, which `torch.nn.functional.cross_entropy` ignores by default."""

_SHARE_OF_FREE_MEMORY = 0.25
_CHUNK_BYTES = 512 * 2**20
# Number of batches that are decoded while the model works on another batch.
_AHEAD = 2


class Moves(Protocol):
    """Random moves of images, such as `Augment`."""

    @property
    def memory(self) -> int:
        """Memory of a moved image relative to the image."""
        ...

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """Return one row of moves per image."""
        ...

    def move(self, images: Tensor, labels: Tensor, index: Tensor, moves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images `index` of (n, H, W, C), moved and as (m, C, H, W), and their labels."""
        ...


class EpochLoader(ABC):
    """Batches that are read epoch by epoch.

    Every order and move is drawn on the CPU from `(seed, epoch)` alone. The same seed gives the same batches on any
    device, and an interrupted run can start again at any epoch.

    Args:
        count: Number of samples.
        batch_size: Number of samples per batch, at most `count`.
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
        """Return the samples with the indices `order`, moved by `moves`, and their labels on the device."""

    @property
    def samples_per_read(self) -> int:
        """Number of samples of one call of `read`, a multiple of the batch size."""
        return self.batch_size

    def __len__(self) -> int:
        """Number of batches per epoch."""
        whole, rest = divmod(self.num_images, self.batch_size)
        return whole if self._drop_last or not rest else whole + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of one epoch; each call to `iter` starts the next epoch."""
        epoch, self._next_epoch = self._next_epoch, self._next_epoch + 1
        return self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of epoch `number`, the same at every call."""
        order, moves = self._draw(number)
        usable = len(self) * self.batch_size if self._drop_last else self.num_images
        step = self.samples_per_read
        parts = [slice(start, min(start + step, usable)) for start in range(0, usable, step)]
        for images, labels in self._reads([(order[part], None if moves is None else moves[part]) for part in parts]):
            yield from zip(torch.split(images, self.batch_size), torch.split(labels, self.batch_size), strict=True)

    def _reads(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the result of `read` for the indices and moves of each part."""
        return (self.read(order, moves) for order, moves in parts)

    def _draw(self, epoch: int) -> tuple[Tensor, Tensor | None]:
        seed = int(np.random.SeedSequence([self._seed, epoch]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        order = torch.arange(self.num_images)
        if self._shuffle:
            order = torch.randperm(self.num_images, generator=generator)
        return order, None if self._augment is None else self._augment.draw(self.num_images, generator)


class DeviceLoader(EpochLoader):
    """Batches of images, which are kept on the device if they fit and are otherwise copied to it in chunks.

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
        void: Label that becomes `NO_LABEL` in the batches.

    A batch is a pair `(images, labels)`. Images are (b, C, H, W), uint8 in channels-last memory, or floats in [0, 1]
    for moved scenes. Labels are int64.

    Examples:
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


class FileLoader(EpochLoader):
    """Batches of images in files, decoded by threads. While a GPU works on a batch, they decode the following batches.

    Args:
        images: Images in files.
        rows: Rows of `images` that the loader reads.
        labels: Labels of these rows.
        options: Options of `EpochLoader`.
    """

    def __init__(self, images: StoredImages, rows: np.ndarray, labels: np.ndarray, **options: Any) -> None:
        super().__init__(len(rows), **options)
        self._images = images
        self._rows = rows
        self._labels = torch.as_tensor(labels).to(self.device)

    def read(self, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Decode and move the images of a batch."""
        return self._placed(self._images[self._rows[order.numpy()]], order, moves)

    def _reads(self, parts: Sequence[tuple[Tensor, Tensor | None]]) -> Iterator[tuple[Tensor, Tensor]]:
        # On a CPU nothing is decoded ahead, because the model uses all cores and would wait for the decoding cores.
        ahead = 0 if self.device.type == "cpu" else _AHEAD
        waiting: deque[Future[np.ndarray]] = deque()
        # The threads of one pool decode the images, and the thread of the other pool requests the batches.
        with decoding_threads() as decoders, ThreadPoolExecutor(1) as reader:
            try:
                following = iter(parts)
                for order, moves in parts:
                    for part, _ in following:
                        waiting.append(reader.submit(self._images.read, self._rows[part.numpy()], decoders))
                        if len(waiting) > ahead:
                            break
                    yield self._placed(waiting.popleft().result(), order, moves)
            finally:
                for future in waiting:
                    future.cancel()

    def _placed(self, pixels: np.ndarray, order: Tensor, moves: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return decoded images and their labels on the device."""
        images = torch.from_numpy(pixels)
        if self.device.type == "cuda":
            images = images.pin_memory()
        images = images.to(self.device, non_blocking=True)
        labels = self._labels[order.to(self.device)].long()
        if moves is None or self._augment is None:
            return images.permute(0, 3, 1, 2), labels
        index = torch.arange(len(order), device=self.device)
        return self._augment.move(images, labels, index, moves.to(self.device))
