"""A request to forget, and the part of it that a method may read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from pour.data.dataset import ImageSplit
from pour.data.samples import as_samples, is_indexed
from pour.errors import PourError, UsageError
from pour.training.recipes import Recipe, get_recipe
from pour.training.tasks.task import get_task, task_of_labels
from pour.unlearning.access import Images, is_pixelwise
from pour.unlearning.user_batches import LabelRule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.data.samples import Batches, IndexedSamples
    from pour.data.scenes import Scenes
    from pour.data.splits import Splits
    from pour.models.clip.texts import TextEncoder

__all__ = ["AccessError", "ForgetRequest", "Granted", "Need"]

Need = Literal["forget", "retain", "validation", "build", "encode"]
"""Data that a method can need: images of forgotten, retained or held-out samples, a fresh model, a text encoder."""
_IMAGES: tuple[Need, ...] = ("forget", "retain", "validation")
_MEANING: dict[str, str] = {
    "forget": "images of the forgotten classes",
    "retain": "images of the retained classes",
    "validation": "images that were not trained on",
    "build": "a function that builds a fresh model",
    "encode": "a text encoder",
}


class AccessError(PourError):
    """A method read data that it had not declared."""


@dataclass(kw_only=True)
class ForgetRequest:
    """Classes to forget, and the data that may be used for it.

    `forget`, `retain` and `validation` are samples with an index, such as a split, scenes or a torch dataset, or
    batches of (images, labels), such as a DataLoader.

    Examples:
        >>> request = ForgetRequest(classes=[0])
        >>> request.grant(("forget",), name="some-method").forget
        Traceback (most recent call last):
        pour.errors.UsageError: some-method needs images of the forgotten classes; pass forget= in the request.
    """

    classes: ClassRequest
    """Classes to forget, by index or name."""
    forget: IndexedSamples | Batches | None = None
    """Training images of those classes. Of samples with several classes, only forget samples are used."""
    retain: IndexedSamples | Batches | None = None
    """Training images of the other classes."""
    validation: IndexedSamples | Batches | None = None
    """Images that were not trained on."""
    build: Callable[[], nn.Module] | None = None
    """Function that returns a freshly initialised model of the same architecture."""
    encode: TextEncoder | None = None
    """Text encoder of the model's embedding space, for dual encoders."""
    recipe: Recipe | str | None = None
    """Recipe with which the original was trained, or its name; for retraining."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class (not so for digits)."""
    class_names: Sequence[str] | None = None
    """Names of the classes of the labels, or None. A model with other names is refused."""

    def __post_init__(self) -> None:
        if isinstance(self.recipe, str):
            self.recipe = get_recipe(self.recipe)

    @classmethod
    def of(
        cls, splits: Splits, *, build: Callable[[], nn.Module] | None = None, recipe: Recipe | str | None = None
    ) -> ForgetRequest:
        """Return the request to forget the classes of `splits`, with all its training data."""
        return cls(
            classes=list(splits.forgotten),
            forget=splits.forget_train,
            retain=splits.retain_train,
            validation=None if splits.validation is None else splits.validation.retain,
            build=build,
            recipe=recipe,
            mirrors=splits.mirrors,
            class_names=splits.classes,
        )

    @classmethod
    def of_scenes(cls, scenes: Scenes, classes: Sequence[int]) -> ForgetRequest:
        """Return the request to forget classes of a segmentation network, from training scenes that may show them.

        It contains only scenes that show one of `classes`, and hides the labels of all other pixels.
        """
        return cls(classes=list(classes), forget=scenes.containing(classes).only(classes))

    @property
    def pixelwise(self) -> bool:
        """Whether labels belong to pixels."""
        return is_pixelwise(self.forget)

    @property
    def channels(self) -> int | None:
        """Number of channels of the images of a split; None for other sources."""
        splits = (images for images in (self.forget, self.retain) if isinstance(images, ImageSplit))
        return next((images.image_shape[2] for images in splits), None)

    def first_images(self, count: int, needs: Collection[Need] = ()) -> Tensor | None:
        """Return at most `count` images of the request, or None if it has none.

        Args:
            count: Largest number of images.
            needs: Data that the method reads. Other images are used only if there are none of these.

        Raises:
            UsageError: The images are not batches of images and labels.
        """
        problem: UsageError | None = None
        offered = [need for need in _IMAGES if getattr(self, need) is not None]
        for need in sorted(offered, key=lambda need: need not in needs):
            try:
                return Images(getattr(self, need)).few(count)
            # An error in data that the method does not need must not stop it.
            except Exception as error:
                if need in needs:
                    raise
                problem = problem or (error if isinstance(error, UsageError) else None)
        if problem:
            raise problem
        return None

    def without(self, classes: Collection[int]) -> ForgetRequest:
        """Return the request without images of `classes` to retain or to validate on. Loaders do not change."""

        def others(images: Any) -> Any:
            samples = None if images is None else as_samples(images)
            return samples.without(classes) if is_indexed(samples) else images

        return replace(self, retain=others(self.retain), validation=others(self.validation)) if classes else self

    def grant(
        self,
        needs: tuple[Need, ...],
        *,
        name: str,
        num_classes: int | None = None,
        classes: Collection[int] | None = None,
        forgotten_before: Collection[int] = (),
    ) -> Granted:
        """Return the part of the request that a method may read.

        Args:
            needs: Data that the method has declared.
            name: Name of the method.
            num_classes: Number of scores of the model, or None if it is unknown.
            classes: Indices of the classes to forget, or None if they are unknown. Images to forget must show these
                classes, and images to retain must show others.
            forgotten_before: Classes forgotten by earlier requests.
        """
        earlier = frozenset(forgotten_before)
        only = None if classes is None else frozenset(classes)
        rules = {
            "forget": LabelRule("The images to forget", num_classes, only=only),
            "retain": LabelRule("The images to retain", num_classes, never=only or frozenset(), unwanted=earlier),
            "validation": LabelRule("The validation images", num_classes, unwanted=earlier),
        }
        request = self if classes is None else replace(self, classes=tuple(classes))
        if classes is not None and self.forget is not None and "forget" in needs:
            request = replace(request, forget=_showing(self.forget, classes))
        return Granted(request, needs, name, rules)


def _showing(source: Any, classes: Collection[int]) -> Any:
    """Return samples with several labels each as methods read them, and other images unchanged.

    Only images that show one of `classes` are returned. In a scene, all other pixels become void. An image with
    several classes gets one label, the first of `classes` that it shows.
    """
    if is_pixelwise(source):
        return source.containing(classes).only(classes)
    samples = as_samples(source)
    if not is_indexed(samples) or samples.labels.ndim == 1:
        return samples
    labels = torch.as_tensor(samples.labels)
    try:
        task = get_task(task_of_labels(labels))
    except UsageError:
        # The label rule raises an error for these labels later.
        return samples
    rows = task.rows(torch.empty(len(labels), 0), labels)
    matches = np.flatnonzero(np.isin(rows.labels.numpy(), list(classes)))
    images, first = np.unique(rows.samples.numpy()[matches], return_index=True)
    return ImageSplit(samples.take(images).images, rows.labels.numpy()[matches[first]])


@dataclass(frozen=True)
class Granted:
    """A request as a method reads it. Undeclared data raise AccessError, and missing data raise UsageError."""

    _request: ForgetRequest
    _needs: tuple[Need, ...]
    name: str
    """Name of the method."""
    _rules: Mapping[str, LabelRule]

    @property
    def classes(self) -> ClassRequest:
        """Classes to forget; a method that `pour.unlearn` calls gets their indices."""
        return self._request.classes

    @property
    def forget(self) -> Images:
        """Training images of the forgotten classes."""
        return self._images_of("forget")

    @property
    def retain(self) -> Images:
        """Training images of the other classes."""
        return self._images_of("retain")

    @property
    def validation(self) -> Images:
        """Images that were not trained on."""
        return self._images_of("validation")

    @property
    def build(self) -> Callable[[], nn.Module]:
        """Function that returns a freshly initialised model."""
        build: Callable[[], nn.Module] = self._read("build")
        return build

    @property
    def encode(self) -> TextEncoder:
        """Text encoder of the model's embedding space."""
        encode: TextEncoder = self._read("encode")
        return encode

    @property
    def pixelwise(self) -> bool:
        """Whether labels belong to pixels."""
        return self._request.pixelwise

    @property
    def recipe(self) -> Recipe | None:
        """Recipe with which the original was trained."""
        recipe = self._request.recipe
        return get_recipe(recipe) if isinstance(recipe, str) else recipe

    @property
    def images(self) -> list[Images]:
        """All images that the method may read."""
        return [self._images_of(need) for need in self._needs if need in _IMAGES]

    def has(self, need: Need) -> bool:
        """Return whether the method may read these data and the request has them."""
        return need in self._needs and getattr(self._request, need) is not None

    def check(self) -> None:
        """Raise UsageError if needed data are missing, or if images show classes that they must not show."""
        for need in self._needs:
            self._read(need)
        _ = self.images

    def _images_of(self, need: Need) -> Images:
        return Images(self._read(need), mirrors=self._request.mirrors, rule=self._rules[need])

    def _read(self, need: Need) -> Any:
        if need not in self._needs:
            raise AccessError(f"{self.name} read {_MEANING[need]} without declaring the need {need!r}.")
        value = getattr(self._request, need)
        if value is None:
            raise UsageError(f"{self.name} needs {_MEANING[need]}; pass {need}= in the request.")
        return value
