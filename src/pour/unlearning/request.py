"""A request to forget, and what a method may see of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pour.data.dataset import ImageSplit
from pour.data.samples import DatasetSamples
from pour.data.scenes import Scenes
from pour.errors import PourError, UsageError
from pour.training.recipes import Recipe, get_recipe
from pour.unlearning.access import Images, first_images
from pour.unlearning.user_batches import LabelRule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.data.samples import Batches, IndexedSamples
    from pour.data.splits import Splits
    from pour.models.clip.texts import TextEncoder

__all__ = ["AccessError", "ForgetRequest", "Granted", "Need"]

Need = Literal["forget", "retain", "validation", "build", "encode"]
"""What a method may ask for: images of forgotten, of retained or of held-out samples, a fresh model, a text encoder."""
_IMAGES: tuple[Need, ...] = ("forget", "retain", "validation")


class AccessError(PourError):
    """A method read data that it had not declared."""


@dataclass(kw_only=True)
class ForgetRequest:
    """What to forget, and the data that may be used for it.

    ``forget``, ``retain`` and ``validation`` are samples with an index, such as a split, scenes or a torch dataset, or
    batches of (images, labels), such as a DataLoader.

    Example:
        >>> request = ForgetRequest(classes=[0])
        >>> request.grant(("forget",), name="some-method").forget
        Traceback (most recent call last):
        pour.errors.UsageError: some-method needs images of the forgotten classes; pass forget= in the request.
    """

    classes: ClassRequest
    """The classes to forget, by index or name."""
    forget: IndexedSamples | Batches | None = None
    """Training images of those classes."""
    retain: IndexedSamples | Batches | None = None
    """Training images of the other classes."""
    validation: IndexedSamples | Batches | None = None
    """Images that were not trained on."""
    build: Callable[[], nn.Module] | None = None
    """Makes a freshly initialised model of the same architecture."""
    encode: TextEncoder | None = None
    """Text encoder of the model's embedding space, for dual encoders."""
    recipe: Recipe | str | None = None
    """Recipe with which the original was trained, or its name; for retraining."""
    mirrors: bool = True
    """Whether a mirrored image still shows its class (not so for digits)."""
    class_names: Sequence[str] | None = None
    """What the labels of the images stand for, where that is known; a model that says otherwise is refused."""

    def __post_init__(self) -> None:
        if isinstance(self.recipe, str):
            self.recipe = get_recipe(self.recipe)

    @classmethod
    def of(
        cls, splits: Splits, *, build: Callable[[], nn.Module] | None = None, recipe: Recipe | str | None = None
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
            class_names=splits.classes,
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

    @property
    def channels(self) -> int | None:
        """Channels of the images, where they are splits of ours."""
        splits = (images for images in (self.forget, self.retain) if isinstance(images, ImageSplit))
        return next((images.image_shape[2] for images in splits), None)

    def first_images(self, count: int, needs: Collection[Need] = ()) -> Tensor | None:
        """Return at most ``count`` images of the request, or None if it has none.

        Args:
            count: most images.
            needs: what the method reads anyway; other images serve only if there are none of these.

        Raises:
            UsageError: The images are not batches of images and labels.
        """
        offered = {"forget": self.forget, "retain": self.retain, "validation": self.validation}
        sources = {need: source for need, source in offered.items() if source is not None}
        declared = next((source for need, source in sources.items() if need in needs), None)
        if declared is not None:
            return first_images(declared, count)
        problems: list[UsageError] = []
        for source in sources.values():
            try:
                return first_images(source, count)
            except UsageError as error:
                problems.append(error)
            except Exception:  # noqa: S112
                # What goes wrong in data that the method does not need must not stop it.
                continue
        if problems:
            raise problems[0]
        return None

    def without(self, classes: Collection[int]) -> ForgetRequest:
        """The same request with no image of ``classes`` to retain or to validate on, where those are splits."""

        def rest(images: Any) -> Any:
            return images.without(classes) if classes and isinstance(images, ImageSplit | DatasetSamples) else images

        return replace(self, retain=rest(self.retain), validation=rest(self.validation))

    def grant(
        self,
        needs: tuple[Need, ...],
        *,
        name: str,
        num_classes: int | None = None,
        classes: Collection[int] | None = None,
        forgotten_before: Collection[int] = (),
    ) -> Granted:
        """What a method may see.

        Args:
            needs: what it has declared.
            name: what it is called.
            num_classes: how many scores the model has, where that is known.
            classes: the indices of the classes to forget, where they are known; images to forget must be of these, and
                images to retain of others.
            forgotten_before: the classes that earlier requests took from the model.
        """
        before = frozenset(forgotten_before)
        wanted = None if classes is None else frozenset(classes)
        rules = {
            "forget": LabelRule("The images to forget", num_classes, only=wanted),
            "retain": LabelRule("The images to retain", num_classes, never=wanted or frozenset(), unwanted=before),
            "validation": LabelRule("The validation images", num_classes, unwanted=before),
        }
        return Granted(self if classes is None else replace(self, classes=tuple(classes)), needs, name, rules)


_MEANING: dict[str, str] = {
    "forget": "images of the forgotten classes",
    "retain": "images of the retained classes",
    "validation": "images that were not trained on",
    "build": "a function that builds a fresh model",
    "encode": "a text encoder",
}


class Granted:
    """A request as a method sees it: reading what it did not declare raises, and so does what is missing."""

    def __init__(
        self, request: ForgetRequest, needs: tuple[Need, ...], name: str, rules: Mapping[str, LabelRule]
    ) -> None:
        self._request = request
        self._needs = needs
        self._name = name
        self._rules = rules

    @property
    def classes(self) -> ClassRequest:
        """The classes to forget; a method that :func:`pour.unlearn` calls gets their indices."""
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
        """Makes a freshly initialised model."""
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
        """All images that may be seen."""
        return [self._images_of(need) for need in self._needs if need in _IMAGES]

    def has(self, need: Need) -> bool:
        """Return whether the method may read these data and the request has them."""
        return need in self._needs and getattr(self._request, need) is not None

    def check(self) -> None:
        """Raise for the first thing that is needed and missing, or of classes that it may not be of."""
        for need in self._needs:
            self._read(need)
        _ = self.images

    def _images_of(self, need: Need) -> Images:
        return Images(self._read(need), mirrors=self._request.mirrors, rule=self._rules[need])

    def _read(self, need: Need) -> Any:
        if need not in self._needs:
            raise AccessError(f"{self._name} read {_MEANING[need]} without declaring the need {need!r}.")
        value = getattr(self._request, need)
        if value is None:
            raise UsageError(f"{self._name} needs {_MEANING[need]}; pass {need}= in the request.")
        return value
