"""Images as methods read them: shuffled and augmented, once in order, or a sample of them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.dataset import ImageSplit
from pour.data.draws import rows_per_class
from pour.data.samples import DatasetSamples, as_samples, first_batch, is_indexed
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.training.loop import Epochs, is_epochs
from pour.unlearning.user_batches import LabelRule, MixedBatches, OwnBatches, own_batches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor

    from pour.data.dataset import LabelArray
    from pour.data.samples import Batches, IndexedSamples
    from pour.training.run import Run

__all__ = ["Images", "first_images"]

_EVALUATION_BATCH = 1000
_FEW = 100
# Scenes are large, and two are enough to verify a head on.
_FEW_SCENES = 2
# An image with a label per pixel fills memory as a thousand small images do.
_SCENES_AT_ONCE = 16


class Images:
    """Images of a request: indexed samples, or the user's own batches.

    Indexed samples are shuffled, and splits and scenes of pour are also cropped and mirrored. The user's batches are
    used as they come, once their labels are checked.

    Args:
        source: Samples with an index, such as a split or a torch dataset, or batches, such as a DataLoader.
        mirrors: Whether a mirrored image still shows its class.
        rule: Labels that the images may have.
    """

    def __init__(
        self, source: IndexedSamples | Batches, *, mirrors: bool = True, rule: LabelRule | None = None
    ) -> None:
        trusted = is_epochs(source) or isinstance(source, MixedBatches)
        self._source: Any = source if trusted else as_samples(source)
        self._mirrors = mirrors
        rule = rule or LabelRule()
        if isinstance(self._source, ImageSplit | DatasetSamples):
            if not len(self._source):
                raise UsageError("The request holds a split without images; check the classes to forget.")
            rule.check(self._source.labels)
        # Loaders of pour give pairs with int64 labels. Looking at them would make the host wait for the GPU.
        elif not trusted and not is_indexed(self._source):
            self._source = own_batches(self._source, rule)

    @property
    def own(self) -> bool:
        """Whether they come as they are, in the user's own batches."""
        return not is_indexed(self._source)

    def training(
        self, run: Run, *, batch_size: int, augment: bool = True, salt: int = 0, full: bool = False
    ) -> Epochs | Any:
        """Return shuffled batches for training. An epoch contains every image once.

        Only a last batch that BatchNorm cannot take is left out: a single image, or scenes too few to fill it.

        Args:
            run: Seed and device.
            batch_size: Number of images per batch.
            augment: Crop and mirror the images at random.
            salt: Distinguishes two loaders of the same run.
            full: Leave out every last batch that is not full, as training from scratch does.
        """
        if not is_indexed(self._source):
            return self._source
        seed = int(np.random.SeedSequence([run.seed, salt]).generate_state(1)[0]) if salt else run.seed
        return self._source.batches(
            batch_size,
            run.torch_device,
            seed=seed,
            shuffle=True,
            augment=augment,
            mirrors=self._mirrors,
            drop_last=full or len(self._source) % batch_size == 1 or isinstance(self._source, Scenes),
        )

    def once(self, run: Run, *, batch_size: int = _EVALUATION_BATCH) -> Batches:
        """Return every image once, as it is, in order."""
        if not is_indexed(self._source):
            batches: Batches = self._source
            return batches
        most = _SCENES_AT_ONCE if isinstance(self._source, Scenes) else batch_size
        return self._source.batches(min(batch_size, most), run.torch_device)

    def sample(
        self, count: int, run: Run, *, batch_size: int = _EVALUATION_BATCH, alone: bool = True
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """Return about ``count`` images, evenly over the classes and mixed with the run's seed, or all if fewer.

        Images of a split are drawn. The user's own batches give the first images of each class. Scenes, which show
        many classes each, come in order.

        Args:
            count: Number of images.
            run: Seed and device.
            batch_size: Number of images per batch.
            alone: Keep a last batch of a single image, which BatchNorm cannot train on.
        """
        if isinstance(self._source, Scenes):
            return _first(self.once(run), count)
        if not is_indexed(self._source):
            batches = _even(self._source, count, run.seed, batch_size)
            return batches if alone or len(batches) < 2 or len(batches[-1][1]) > 1 else batches[:-1]
        labels = self._source.labels
        rng = np.random.default_rng(run.seed)
        classes = np.unique(labels).tolist()
        rows = rows_per_class(labels, dict.fromkeys(classes, -(-count // len(classes))), rng)
        chosen = self._source.take(rng.permutation(rows))
        drop_last = not alone and len(chosen) % batch_size == 1
        return chosen.batches(batch_size, run.torch_device, drop_last=drop_last)

    def few(self, run: Run) -> Tensor:
        """The first images, as they are, to see what a model makes of them; of the user's own the first batch."""
        some = self
        if isinstance(self._source, ImageSplit | DatasetSamples):
            some = Images(self._source.take(np.arange(min(_FEW, len(self._source)))), mirrors=self._mirrors)
        # A look at a DataLoader draws from the generator that training goes on with.
        with torch.random.fork_rng(devices=()):
            first = next(iter(some.once(run)), None)
        if first is None:
            raise UsageError("The request holds no batches; give some images.")
        return first[0]

    def check_unit(self, method: str, run: Run) -> None:
        """Warn where the user's images are not in [0, 1], as ``method`` takes them to be; the first batch tells."""
        if not isinstance(self._source, OwnBatches | DatasetSamples):
            return
        images = self.few(run)
        if not images.is_floating_point():
            return
        low, high = images.min().item(), images.max().item()
        if low < 0 or high > 1:
            warnings.warn(
                f"{method} works on pixels from 0 to 1, but these go from {low:.3g} to {high:.3g}; give images as they "
                "are and put their normalisation into the model (pour.models.NormalizedModel).",
                stacklevel=3,
            )

    @property
    def count(self) -> int | None:
        """How many images, where that is known beforehand."""
        return len(self._source) if is_indexed(self._source) else None

    @property
    def labels(self) -> LabelArray | None:
        """The label of every image, where they are known beforehand."""
        return self._source.labels if isinstance(self._source, ImageSplit) else None

    def relabelled(self, labels: LabelArray) -> Images:
        """The same images, in the same order, with other labels; only where :attr:`labels` are known."""
        if not isinstance(self._source, ImageSplit):
            raise UsageError("Only the labels of a split can be replaced; the user's own batches come with theirs.")
        if labels.shape != self._source.labels.shape:
            raise UsageError(f"There are {len(labels)} labels for {len(self._source)} images; each image needs one.")
        changed = self._source.take(np.arange(len(self._source)))
        changed.labels = labels.astype(np.int64, copy=False)
        return Images(changed, mirrors=self._mirrors)

    def part(self, share: float, run: Run) -> Images:
        """A random share of the images, drawn once with the run's seed; of the user's own batches all."""
        if not isinstance(self._source, ImageSplit | DatasetSamples) or share >= 1:
            return self
        count = max(1, round(share * len(self._source)))
        rows = np.random.default_rng(run.seed).permutation(len(self._source))[:count]
        return Images(self._source.take(np.sort(rows)), mirrors=self._mirrors)

    def joined(self, other: Images, run: Run) -> Images:
        """These images and the other ones, mixed with the run's seed; the user's own batches are mixed in order."""
        first, second = self._source, other._source
        if not isinstance(first, ImageSplit) or not isinstance(second, ImageSplit):
            return Images(MixedBatches(self.once(run), other.once(run)), mirrors=self._mirrors)
        order = np.random.default_rng(run.seed).permutation(len(first) + len(second))
        images = np.concatenate([first.images, second.images])[order]
        labels = np.concatenate([first.labels, second.labels])[order]
        return Images(ImageSplit(images, labels), mirrors=self._mirrors)


def first_images(source: IndexedSamples | Batches, count: int) -> Tensor:
    """Return at most ``count`` images, as they are. Raise UsageError if ``source`` contains no images.

    Later readings give the same batches as without this call.
    """
    if is_indexed(source):
        if not len(source):
            raise UsageError("The request holds a split without images; check the classes to forget.")
        return first_batch(source, min(count, _FEW_SCENES) if isinstance(source, Scenes) else count)[0]
    checked: Any = source if is_epochs(source) else Images(source)._source
    return first_batch(checked, count, loader=source)[0]


def _first(batches: Iterable[tuple[Tensor, Tensor]], count: int) -> Iterable[tuple[Tensor, Tensor]]:
    taken: list[tuple[Tensor, Tensor]] = []
    for images, labels in batches:
        if count <= 0:
            break
        taken.append((images[:count], torch.as_tensor(labels)[:count]))
        count -= len(images)
    return taken


def _even(
    batches: Iterable[tuple[Tensor, Tensor]], count: int, seed: int, batch_size: int
) -> list[tuple[Tensor, Tensor]]:
    """The first images of each class, as many of each, mixed; a pass over all batches tells the classes."""
    kept: dict[int, list[Tensor]] = {}
    for images, labels in batches:
        for image, label in zip(images, torch.as_tensor(labels).tolist(), strict=True):
            if label not in kept:
                kept[label] = []
                each = -(-count // len(kept))
                for others in kept.values():
                    del others[each:]
            if len(kept[label]) < each:
                kept[label].append(image)
    if not kept:
        return []
    chosen = torch.stack([image for images in kept.values() for image in images])
    named = torch.tensor([label for label, images in kept.items() for _ in images])
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(named)))
    parts = (torch.split(tensor[order], batch_size) for tensor in (chosen, named))
    return list(zip(*parts, strict=True))
