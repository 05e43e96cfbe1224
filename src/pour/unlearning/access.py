"""Images as methods read them: shuffled and augmented, once in order, or a sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from pour.data.dataset import ImageSplit, join_splits
from pour.data.draws import rows_per_class
from pour.data.samples import as_samples, checked_batch, first_batch, is_indexed, some_batches
from pour.errors import UsageError, warn
from pour.models.tap import to_unit
from pour.training.loop import Epochs, as_epochs, is_epochs
from pour.unlearning.user_batches import LabelRule, MixedBatches, UserBatches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from pour.data.dataset import LabelArray
    from pour.data.samples import Batches, IndexedSamples
    from pour.training.run import Run

__all__ = ["Images", "first_batches", "is_pixelwise"]

_EVALUATION_BATCH = 1000
_FEW = 100
# Scenes are large, and two are enough to verify a head on.
_FEW_SCENES = 2
# A scene needs as much memory as many small images.
_SCENES_AT_ONCE = 16


class Images:
    """Images of a request: indexed samples, or the user's own batches.

    Indexed samples are shuffled, and splits and scenes of pour are also cropped and mirrored. The user's batches are
    checked and otherwise used unchanged.

    Args:
        source: Samples with an index, such as a split or a torch dataset, or batches, such as a DataLoader.
        mirrors: Whether a mirrored image still shows its class.
        rule: Labels that the images may have.
    """

    def __init__(
        self, source: IndexedSamples | Batches, *, mirrors: bool = True, rule: LabelRule | None = None
    ) -> None:
        self._source = cast("Any", source if is_epochs(source) else as_samples(source))
        self._mirrors = mirrors
        if self._has_labels:
            if not len(self._source):
                raise UsageError("The request contains a split without images; check the classes to forget.")
            if rule is not None:
                rule.check(self._source.labels)
        # Loaders of pour return int64 labels. Checking these labels would make the host wait for the GPU.
        elif not is_indexed(self._source) and not is_epochs(source):
            self._source = UserBatches(self._source, rule or LabelRule())

    @property
    def from_user(self) -> bool:
        """Whether the images come in the user's own batches."""
        return not is_indexed(self._source)

    @property
    def _has_labels(self) -> bool:
        """Whether each sample has one label that can be read without the image."""
        return is_indexed(self._source) and not is_pixelwise(self._source)

    def training(self, run: Run, *, batch_size: int, augment: bool = True, salt: int = 0, full: bool = False) -> Epochs:
        """Return shuffled batches for training. An epoch contains every image once.

        Only a last batch that BatchNorm cannot train on is left out: a single image, or too few scenes for a batch.

        Args:
            run: Seed and device.
            batch_size: Number of images per batch.
            augment: Crop and mirror the images at random.
            salt: Distinguishes two loaders of the same run.
            full: Leave out every last batch that is not full, as training from scratch does.
        """
        if self.from_user:
            return as_epochs(self._source, run)
        seed = int(np.random.SeedSequence([run.seed, salt]).generate_state(1)[0]) if salt else run.seed
        batches: Epochs = self._source.batches(
            batch_size,
            run.torch_device,
            seed=seed,
            shuffle=True,
            augment=augment,
            mirrors=self._mirrors,
            drop_last=full or len(self._source) % batch_size == 1 or not self._has_labels,
        )
        return as_epochs(batches, run)

    def once(self, run: Run, *, batch_size: int = _EVALUATION_BATCH) -> Batches:
        """Return every image once, without augmentation, in order."""
        size = batch_size if self._has_labels else min(batch_size, _SCENES_AT_ONCE)
        batches: Batches = self._source if self.from_user else self._source.batches(size, run.torch_device)
        return batches

    def sample(
        self, count: int, run: Run, *, batch_size: int = _EVALUATION_BATCH, alone: bool = True
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Return about `count` images, evenly over the classes and mixed with the run's seed, or all if fewer.

        Images of a split are drawn at random. Of the user's batches, the first images of each class are returned.
        Scenes, which show many classes each, are returned in order.

        Args:
            count: Number of images.
            run: Seed and device.
            batch_size: Number of images per batch.
            alone: Keep a last batch of a single image, which BatchNorm cannot train on.
        """
        if self.from_user:
            batches = _even(self._source, count, run.seed, batch_size)
            return batches if alone or len(batches) < 2 or len(batches[-1][1]) > 1 else batches[:-1]
        if not self._has_labels:
            return first_batches(self.once(run), count, run)
        labels = self._source.labels
        rng = np.random.default_rng(run.seed)
        classes = np.unique(labels).tolist()
        rows = rows_per_class(labels, dict.fromkeys(classes, -(-count // len(classes))), rng)
        drawn: IndexedSamples = self._source.take(rng.permutation(rows))
        drop_last = not alone and len(drawn) % batch_size == 1
        return drawn.batches(batch_size, run.torch_device, drop_last=drop_last)

    def few(self, count: int = _FEW) -> Tensor:
        """Return at most `count` images without augmentation. Raise UsageError for a source without images.

        Later readings return the same batches as without this call.
        """
        loader = self._source.batches if isinstance(self._source, UserBatches) else self._source
        limit = min(count, _FEW_SCENES) if is_pixelwise(self._source) else count
        return first_batch(self._source, limit, loader=loader)[0]

    def some(self, count: int, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of about `count` images without augmentation; see `pour.data.samples.some_batches`."""
        loader = self._source.batches if isinstance(self._source, UserBatches) else self._source
        return some_batches(self._source, count, size, loader=loader)

    def check_unit(self, method: str) -> None:
        """Warn if the first images are floats outside of [0, 1], which is the range that `method` needs."""
        images = self.few()
        if not images.is_floating_point():
            return
        low, high = images.min().item(), images.max().item()
        if low < 0 or high > 1:
            warn(
                f"{method} works on pixels from 0 to 1, but these go from {low:.3g} to {high:.3g}; pass images as they "
                "are and put their normalisation into the model (pour.models.NormalizedModel)."
            )

    @property
    def count(self) -> int | None:
        """Number of images, or None for the user's batches."""
        return None if self.from_user else len(self._source)

    @property
    def labels(self) -> LabelArray | None:
        """Label of every image of a split; None for other sources."""
        return self._source.labels if isinstance(self._source, ImageSplit) else None

    def relabelled(self, labels: LabelArray) -> Images:
        """Return the images of a split with other labels. Raise UsageError for other sources."""
        if self.labels is None:
            raise UsageError("Only the labels of a split can be replaced; pass a split instead of batches.")
        if labels.shape != self.labels.shape:
            raise UsageError(f"There are {len(labels)} labels for {len(self._source)} images; each image needs one.")
        images = self._take(np.arange(len(self._source)))
        images._source.labels = labels.astype(np.int64, copy=False)
        return images

    def part(self, share: float, run: Run) -> Images:
        """Return a random share of the images, drawn with the run's seed; all images of the user's batches."""
        if not self._has_labels or share >= 1:
            return self
        count = max(1, round(share * len(self._source)))
        rows = np.random.default_rng(run.seed).permutation(len(self._source))[:count]
        return self._take(np.sort(rows))

    def joined(self, other: Images, run: Run) -> Images:
        """Return the images of both sources. Splits are mixed with the run's seed, other sources stay in order."""
        first, second = self._source, other._source
        if self.labels is None or other.labels is None:
            return Images(MixedBatches(self.once(run), other.once(run)), mirrors=self._mirrors)
        order = np.random.default_rng(run.seed).permutation(len(first) + len(second))
        return Images(join_splits([first, second]).take(order), mirrors=self._mirrors)

    def _take(self, rows: LabelArray) -> Images:
        return Images(self._source.take(rows), mirrors=self._mirrors)


def is_pixelwise(source: object) -> bool:
    """Return whether `source` are indexed samples whose labels belong to pixels, some of which can be hidden."""
    return is_indexed(source) and hasattr(type(source), "only")


def first_batches(batches: Iterable[tuple[Tensor, Tensor]], limit: int, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Return the first batches of images in [0, 1] and labels, at most `limit` images, on the run's device."""
    taken: list[tuple[Tensor, Tensor]] = []
    for images, labels in map(checked_batch, batches):
        taken.append((to_unit(images[:limit].to(run.torch_device)), labels[:limit].to(run.torch_device)))
        limit -= len(labels)
        if limit <= 0:
            break
    return taken


def _even(
    batches: Iterable[tuple[Tensor, Tensor]], count: int, seed: int, batch_size: int
) -> list[tuple[Tensor, Tensor]]:
    """Return the first images of each class, mixed, with the same number per class. Read all batches once."""
    by_class: dict[int, list[Tensor]] = {}
    for images, labels in batches:
        for image, label in zip(images, torch.as_tensor(labels).tolist(), strict=True):
            if label not in by_class:
                by_class[label] = []
                each = -(-count // len(by_class))
                for others in by_class.values():
                    del others[each:]
            if len(by_class[label]) < each:
                by_class[label].append(image)
    if not by_class:
        return []
    stacked = torch.stack([image for images in by_class.values() for image in images])
    labels = torch.tensor([label for label, images in by_class.items() for _ in images])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)))
    parts = (torch.split(tensor[order], batch_size) for tensor in (stacked, labels))
    return list(zip(*parts, strict=True))
