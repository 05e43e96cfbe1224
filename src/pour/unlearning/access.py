"""Images as methods read them: shuffled and augmented, once in order, or a sample; ours, or the user's own batches."""

from __future__ import annotations

import contextlib
import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.augment import Augment
from pour.data.dataset import ImageSplit
from pour.data.loader import DeviceLoader
from pour.data.scene_loader import SceneAugment, SceneLoader
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.training.loop import Epochs, is_epochs
from pour.unlearning.user_batches import LabelRule, MixedBatches, OwnBatches, own_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from pour.data.dataset import LabelArray
    from pour.training.run import Run

__all__ = ["Images", "first_images"]

_EVALUATION_BATCH = 1000
_FEW = 100
# Scenes are large, and two are enough to verify a head on.
_FEW_SCENES = 2
# An image with a label to a pixel fills memory as a thousand small ones do.
_SCENES_AT_ONCE = 16


class Images:
    """Images of a request: a split of ours, scenes with a label to each pixel, or the user's own batches.

    Splits and scenes are shuffled, cropped and mirrored on the device; the user's batches are used as they come, once
    their labels are checked.

    Args:
        source: where they come from.
        mirrors: whether a mirrored image still shows its class.
        rule: which labels they may have.
    """

    def __init__(
        self,
        source: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]],
        *,
        mirrors: bool = True,
        rule: LabelRule | None = None,
    ) -> None:
        self._source = source
        self._mirrors = mirrors
        rule = rule or LabelRule()
        if isinstance(source, ImageSplit):
            if not len(source):
                raise UsageError("The request holds a split without images; check the classes to forget.")
            rule.check(source.labels)
        if isinstance(source, ImageSplit | Scenes):
            return
        if iter(source) is source:
            raise UsageError("The request needs batches that can be read more than once, such as a DataLoader.")
        # Loaders of ours give pairs with int64 labels; looking at them would make the host wait for the GPU.
        if not is_epochs(source) and not isinstance(source, MixedBatches):
            self._source = own_batches(source, rule)

    @property
    def own(self) -> bool:
        """Whether they come as they are, in the user's own batches."""
        return not isinstance(self._source, ImageSplit | Scenes)

    def training(
        self, run: Run, *, batch_size: int, augment: bool = True, salt: int = 0, full: bool = False
    ) -> Epochs | Any:
        """Shuffled batches for training, in which an epoch holds every image once.

        Left out is only a last batch that BatchNorm may not take: a single image, or scenes too few to fill it.

        Args:
            run: seed and device.
            batch_size: images to a batch.
            augment: crop and mirror them at random.
            salt: tells apart two loaders of the same run.
            full: leave out every last batch that is not full, as training from scratch does.
        """
        seed = int(np.random.SeedSequence([run.seed, salt]).generate_state(1)[0]) if salt else run.seed
        if isinstance(self._source, Scenes):
            return SceneLoader(
                self._source,
                batch_size=batch_size,
                device=run.torch_device,
                seed=seed,
                shuffle=True,
                augment=SceneAugment(flip=self._mirrors) if augment else None,
                drop_last=True,
            )
        if not isinstance(self._source, ImageSplit):
            return self._source
        side = self._source.image_shape[0]
        return DeviceLoader(
            self._source.images,
            self._source.labels,
            batch_size=batch_size,
            device=run.torch_device,
            seed=seed,
            shuffle=True,
            augment=Augment.for_images(side, flip=self._mirrors) if augment else None,
            drop_last=full or len(self._source) % batch_size == 1,
        )

    def once(self, run: Run, *, batch_size: int = _EVALUATION_BATCH) -> Iterable[tuple[Tensor, Tensor]]:
        """Every image once, as it is, in order."""
        if isinstance(self._source, Scenes):
            size = min(batch_size, _SCENES_AT_ONCE)
            return SceneLoader(self._source, batch_size=size, device=run.torch_device)
        if not isinstance(self._source, ImageSplit):
            return self._source
        return DeviceLoader(self._source.images, self._source.labels, batch_size=batch_size, device=run.torch_device)

    def sample(
        self, count: int, run: Run, *, batch_size: int = _EVALUATION_BATCH, alone: bool = True
    ) -> Iterable[tuple[Tensor, Tensor]]:
        """About ``count`` images, evenly over the classes and mixed with the run's seed; all where there are fewer.

        Of a split they are drawn; of the user's own batches the first of each class are taken. Scenes, which show many
        classes each, come in order.

        Args:
            count: how many images.
            run: seed and device.
            batch_size: images to a batch.
            alone: keep a last batch of a single image, which BatchNorm may not train on.
        """
        if isinstance(self._source, Scenes):
            return _first(self.once(run), count)
        if not isinstance(self._source, ImageSplit):
            batches = _even(self._source, count, run.seed, batch_size)
            return batches if alone or len(batches) < 2 or len(batches[-1][1]) > 1 else batches[:-1]
        labels = self._source.labels
        rng = np.random.default_rng(run.seed)
        classes = np.unique(labels)
        each = -(-count // len(classes))
        rows = [rng.permutation(np.flatnonzero(labels == label))[:each] for label in classes]
        chosen = self._source.take(rng.permutation(np.concatenate(rows)))
        return DeviceLoader(
            chosen.images,
            chosen.labels,
            batch_size=batch_size,
            device=run.torch_device,
            drop_last=not alone and len(chosen) % batch_size == 1,
        )

    def few(self, run: Run) -> Tensor:
        """The first images, as they are, to see what a model makes of them; of the user's own the first batch."""
        some = self
        if isinstance(self._source, ImageSplit):
            some = Images(self._source.take(np.arange(min(_FEW, len(self._source)))), mirrors=self._mirrors)
        # A look at a DataLoader draws from the generator that training goes on with.
        with torch.random.fork_rng(devices=()):
            first = next(iter(some.once(run)), None)
        if first is None:
            raise UsageError("The request holds no batches; give some images.")
        return first[0]

    def check_unit(self, method: str, run: Run) -> None:
        """Warn where the user's images are not in [0, 1], as ``method`` takes them to be; the first batch tells."""
        if not isinstance(self._source, OwnBatches):
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
        return len(self._source) if isinstance(self._source, ImageSplit | Scenes) else None

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
        if not isinstance(self._source, ImageSplit) or share >= 1:
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


def first_images(source: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]], count: int) -> Tensor:
    """Return at most ``count`` images, as they are. Raise UsageError if ``source`` contains no images.

    Nothing random is drawn from the generators that later reads use.
    """
    if isinstance(source, ImageSplit | Scenes):
        if not len(source.images):
            raise UsageError("The request holds a split without images; check the classes to forget.")
        few = min(count, _FEW_SCENES) if isinstance(source, Scenes) else count
        return torch.as_tensor(source.images[:few]).permute(0, 3, 1, 2)
    with _undisturbed(source):
        # The batches of a loader of ours would go on with its next epoch.
        batches: Any = source.epoch(0) if is_epochs(source) else Images(source)._source
        first = next(iter(batches), None)
    if first is None:
        raise UsageError("The request holds no batches; give some images.")
    images: Tensor = first[0]
    return images[:count]


@contextlib.contextmanager
def _undisturbed(loader: object) -> Iterator[None]:
    """Restore the global random generators, and those of a DataLoader and its samplers, after the block."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    states = [(generator, generator.get_state()) for generator in generators if isinstance(generator, torch.Generator)]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        for generator, state in states:
            generator.set_state(state)


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
