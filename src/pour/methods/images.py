"""Images as methods read them: shuffled and augmented, once in order, or a sample; ours, or the user's own batches."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from pour.data.augment import Augment
from pour.data.dataset import ImageSplit
from pour.data.loader import DeviceLoader
from pour.data.scene_loader import SceneAugment, SceneLoader
from pour.data.scenes import Scenes
from pour.errors import UsageError
from pour.models.tap import checked_batch
from pour.training.loop import Epochs, is_epochs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import Tensor

    from pour.data.dataset import LabelArray
    from pour.training.run import Run

__all__ = ["Images", "LabelRule"]

_EVALUATION_BATCH = 1000
_FEW = 100
# An image with a label to a pixel fills memory as a thousand small ones do.
_SCENES_AT_ONCE = 16


@dataclass
class LabelRule:
    """Which labels images may have, by what they are there for."""

    what: str = "the images"
    """What they are called in a sentence."""
    num_classes: int | None = None
    """How many scores the model has, where that is known; labels must be below."""
    only: frozenset[int] | None = None
    """The classes that they must be of."""
    never: frozenset[int] = frozenset()
    """Classes that they must not be of: those that are to be forgotten."""
    unwanted: frozenset[int] = frozenset()
    """Classes that they should not be of: those that the model was made to forget before. Told once."""

    def check(self, labels: Tensor | LabelArray) -> None:
        """Raise for the first label that may not be, and warn of one that should not."""
        for label in np.unique(np.asarray(torch.as_tensor(labels).cpu())).tolist():
            if self.num_classes is not None and not 0 <= label < self.num_classes:
                raise UsageError(
                    f"A batch has the label {label}, but the model has classes 0 to {self.num_classes - 1}."
                )
            if self.only is not None and label not in self.only:
                named = ", ".join(map(str, sorted(self.only)))
                raise UsageError(
                    f"{self.what} hold class {label}, which is not to be forgotten ({named} is); give images of the "
                    "classes to forget alone."
                )
            if label in self.never:
                raise UsageError(
                    f"{self.what} hold class {label}, which is to be forgotten; leave its images out "
                    "(pour.Splits divides a dataset)."
                )
            if label in self.unwanted:
                self.unwanted = frozenset()
                warnings.warn(
                    f"{self.what} hold class {label}, which the model was made to forget before; training on them "
                    "teaches it again, so leave them out.",
                    stacklevel=2,
                )


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
        if not is_epochs(source) and not isinstance(source, _Mixed):
            self._source = (_SizedOwn if _has_length(source) else _Own)(source, rule)

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
            images, _ = next(iter(some.once(run)))
        return images

    def check_unit(self, method: str, run: Run) -> None:
        """Warn where the user's images are not in [0, 1], as ``method`` takes them to be; the first batch tells."""
        if not isinstance(self._source, _Own):
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
            return Images(_Mixed(self.once(run), other.once(run)), mirrors=self._mirrors)
        order = np.random.default_rng(run.seed).permutation(len(first) + len(second))
        images = np.concatenate([first.images, second.images])[order]
        labels = np.concatenate([first.labels, second.labels])[order]
        return Images(ImageSplit(images, labels), mirrors=self._mirrors)


class _Own:
    """The user's own batches, as often as they are read: pairs with int64 labels that the model has scores for."""

    def __init__(self, batches: Iterable[Any], rule: LabelRule) -> None:
        self._batches = batches
        self._rule = rule

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return map(self._checked, self._batches)

    def _checked(self, batch: Any) -> tuple[Tensor, Tensor]:
        images, labels = checked_batch(batch)
        if labels.is_floating_point() or labels.is_complex():
            raise UsageError(
                f"The labels of a batch are {labels.dtype} of shape {tuple(labels.shape)}; give class indices, a whole "
                "number for each image."
            )
        if labels.shape[1:] == (1,):
            labels = labels.squeeze(1)
        if labels.ndim != 1:
            raise UsageError(
                f"The labels of a batch have the shape {tuple(labels.shape)}; give one to an image, or scenes with one "
                "to a pixel by pour.ForgetRequest.of_scenes."
            )
        if not len(labels):
            raise UsageError("A batch holds no image; leave empty batches out.")
        labels = labels.to(torch.int64)
        self._rule.check(labels)
        return images, labels


class _SizedOwn(_Own):
    """The same with a length, which training needs."""

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]


def _has_length(batches: Iterable[Any]) -> bool:
    try:
        len(batches)  # type: ignore[arg-type]
    except TypeError:
        # None at all, or a DataLoader over a stream, which does not know its own.
        return False
    return True


class _Mixed:
    """Two sources of batches, the images of the one spread over the batches of the other, as often as they are read.

    Batches of one kind alone would have gradients that no batch of the whole data has.
    """

    def __init__(self, one: Iterable[tuple[Tensor, Tensor]], other: Iterable[tuple[Tensor, Tensor]]) -> None:
        counts = [sum(len(labels) for _, labels in part) for part in (one, other)]
        order = (0, 1) if counts[0] >= counts[1] else (1, 0)
        self._larger, self._smaller = ((one, other)[place] for place in order)
        self._counts = [counts[place] for place in order]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rest = iter(self._smaller)
        spare: list[tuple[Tensor, Tensor]] = []
        seen = given = 0
        for images, labels in self._larger:
            seen += len(labels)
            # As many of the smaller source as keep step with the larger.
            due = round(self._counts[1] * seen / max(1, self._counts[0])) - given
            while sum(len(part) for _, part in spare) < due and (more := next(rest, None)) is not None:
                spare.append(more)
            if due <= 0 or not spare:
                yield images, labels
                continue
            held = torch.cat([part for part, _ in spare]), torch.cat([part for _, part in spare])
            spare = [(held[0][due:], held[1][due:])]
            given += len(held[1][:due])
            yield torch.cat([images, held[0][:due].to(images)]), torch.cat([labels, held[1][:due].to(labels)])


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
