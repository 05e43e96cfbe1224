"""A request to forget, and what a method may see of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from pour.data.augment import Augment
from pour.data.dataset import ImageSplit
from pour.data.loader import DeviceLoader
from pour.data.scene_loader import SceneAugment, SceneLoader
from pour.data.scenes import Scenes
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn

    from pour.data.dataset import LabelArray
    from pour.data.splits import Splits
    from pour.models.classes import ClassRequest
    from pour.training.loop import Epochs
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["AccessError", "ForgetRequest", "Granted", "Images", "Need"]

Need = Literal["forget", "retain", "validation", "build"]
"""What a method may ask for: images of the forgotten or retained classes, held-out images, a fresh model."""

_EVALUATION_BATCH = 1000
# An image with a label to a pixel fills memory as a thousand small ones do.
_SCENES_AT_ONCE = 16


class AccessError(PourError):
    """A method read data that it had not declared."""


class Images:
    """Images of a request: a split of ours, scenes with a label to each pixel, or the user's own batches.

    Splits and scenes are shuffled, cropped and mirrored on the device; the user's batches are used as they come.
    """

    def __init__(self, source: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]], *, mirrors: bool = True) -> None:
        self._source = source
        self._mirrors = mirrors
        if isinstance(source, ImageSplit) and not len(source):
            raise UsageError("The request holds a split without images; check the classes to forget.")
        if not isinstance(source, ImageSplit | Scenes) and iter(source) is source:
            raise UsageError("The request needs batches that can be read more than once, such as a DataLoader.")

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

    def sample(self, count: int, run: Run, *, batch_size: int = _EVALUATION_BATCH) -> Iterable[tuple[Tensor, Tensor]]:
        """About ``count`` images, evenly over the classes and mixed with the run's seed; all where there are fewer.

        Of a split they are drawn; of the user's own batches the first of each class are taken. Scenes, which show many
        classes each, come in order.
        """
        if isinstance(self._source, Scenes):
            return _first(self.once(run), count)
        if not isinstance(self._source, ImageSplit):
            return _even(self._source, count, run.seed, batch_size)
        labels = self._source.labels
        rng = np.random.default_rng(run.seed)
        classes = np.unique(labels)
        each = -(-count // len(classes))
        rows = [rng.permutation(np.flatnonzero(labels == label))[:each] for label in classes]
        chosen = self._source.take(rng.permutation(np.concatenate(rows)))
        return DeviceLoader(chosen.images, chosen.labels, batch_size=batch_size, device=run.torch_device)

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

    def joined(self, other: Images, run: Run) -> Images:
        """These images and the other ones, mixed with the run's seed; the user's own batches follow each other."""
        first, second = self._source, other._source
        if not isinstance(first, ImageSplit) or not isinstance(second, ImageSplit):
            return Images(_Chain(self.once(run), other.once(run)), mirrors=self._mirrors)
        order = np.random.default_rng(run.seed).permutation(len(first) + len(second))
        images = np.concatenate([first.images, second.images])[order]
        labels = np.concatenate([first.labels, second.labels])[order]
        return Images(ImageSplit(images, labels), mirrors=self._mirrors)


class _Chain:
    """Two iterables one after the other, as often as they are read."""

    def __init__(self, *parts: Iterable[tuple[Tensor, Tensor]]) -> None:
        self._parts = parts

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return chain.from_iterable(self._parts)


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


@dataclass(kw_only=True)
class ForgetRequest:
    """What to forget, and the data that may be used for it.

    ``forget``, ``retain`` and ``validation`` are splits of ours, scenes (for segmentation), or batches of (images,
    labels), such as a DataLoader.

    Example:
        >>> request = ForgetRequest(classes=[0])
        >>> request.grant(("forget",), name="some-method").forget
        Traceback (most recent call last):
        pour.errors.UsageError: some-method needs images of the forgotten classes; pass forget= in the request.
    """

    classes: ClassRequest
    """The classes to forget, by index or name."""
    forget: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]] | None = None
    """Training images of those classes."""
    retain: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]] | None = None
    """Training images of the other classes."""
    validation: ImageSplit | Scenes | Iterable[tuple[Tensor, Tensor]] | None = None
    """Images that were not trained on."""
    build: Callable[[], nn.Module] | None = None
    """Makes a freshly initialised model of the same architecture."""
    recipe: Recipe | None = None
    """How the original was trained, for retraining."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class (not so for digits)."""

    @classmethod
    def of(
        cls, splits: Splits, *, build: Callable[[], nn.Module] | None = None, recipe: Recipe | None = None
    ) -> ForgetRequest:
        """The request to forget what ``splits`` divides off, with all its training data on offer."""
        return cls(
            classes=list(splits.forgotten),
            forget=splits.forget_train,
            retain=splits.retain_train,
            validation=None if splits.validation is None else splits.validation.retain,
            build=build,
            recipe=recipe,
            mirrors=splits.mirrors,
        )

    @classmethod
    def of_scenes(cls, scenes: Scenes, classes: Sequence[int]) -> ForgetRequest:
        """The request to forget classes of a segmentation network, from training scenes that may show them.

        Only images that show one of ``classes`` are on offer, and in them only the labels of those pixels: nothing says
        what the other pixels are.
        """
        return cls(classes=list(classes), forget=scenes.containing(classes).only(classes))

    @property
    def pixelwise(self) -> bool:
        """Whether labels belong to pixels."""
        return isinstance(self.forget, Scenes)

    def grant(self, needs: tuple[Need, ...], *, name: str) -> Granted:
        """What the method ``name`` may see, having declared ``needs``."""
        return Granted(self, needs, name)


_MEANING: dict[str, str] = {
    "forget": "images of the forgotten classes",
    "retain": "images of the retained classes",
    "validation": "images that were not trained on",
    "build": "a function that builds a fresh model",
}


class Granted:
    """A request as a method sees it: reading what it did not declare raises, and so does what is missing."""

    def __init__(self, request: ForgetRequest, needs: tuple[Need, ...], name: str) -> None:
        self._request = request
        self._needs = needs
        self._name = name

    @property
    def classes(self) -> ClassRequest:
        """The classes to forget."""
        return self._request.classes

    @property
    def forget(self) -> Images:
        """Training images of the forgotten classes."""
        return Images(self._read("forget"), mirrors=self._request.mirrors)

    @property
    def retain(self) -> Images:
        """Training images of the other classes."""
        return Images(self._read("retain"), mirrors=self._request.mirrors)

    @property
    def validation(self) -> Images:
        """Images that were not trained on."""
        return Images(self._read("validation"), mirrors=self._request.mirrors)

    @property
    def build(self) -> Callable[[], nn.Module]:
        """Makes a freshly initialised model."""
        build: Callable[[], nn.Module] = self._read("build")
        return build

    @property
    def pixelwise(self) -> bool:
        """Whether labels belong to pixels."""
        return self._request.pixelwise

    @property
    def recipe(self) -> Recipe | None:
        """How the original was trained."""
        return self._request.recipe

    def check(self) -> None:
        """Raise for the first thing that is needed and missing."""
        for need in self._needs:
            self._read(need)

    def _read(self, need: Need) -> Any:
        if need not in self._needs:
            raise AccessError(f"{self._name} read {_MEANING[need]} without declaring the need {need!r}.")
        value = getattr(self._request, need)
        if value is None:
            raise UsageError(f"{self._name} needs {_MEANING[need]}; pass {need}= in the request.")
        return value
