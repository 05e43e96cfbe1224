"""Anchors: inputs on which a trained encoder must stay as it was, and the steps that mix them with forget images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from pour.errors import UsageError
from pour.models.tap import checked_batches, to_unit
from pour.training.loop import as_epochs
from pour.unlearning.toolkit.views import has_views, transformed_copies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Anchor", "AnchorKind", "AnchoredSteps", "anchor_kind", "first_images"]

Anchor = Literal["auto", "views", "retained"]
"""What holds the encoder in place: transformed copies of the forget images, or retained images. ``auto`` takes retained
images if the request has them, otherwise copies."""
AnchorKind = Literal["views", "retained", "none"]
"""The anchors of a run; ``none`` if the inputs are not images and there are no retained ones."""


def anchor_kind(wanted: Anchor, request: Granted, run: Run) -> AnchorKind:
    """Return which anchors a run has.

    Raises:
        UsageError: Retained images were asked for, and the request has none; or copies of inputs that are not images.
    """
    if wanted == "retained" and not request.has("retain"):
        raise UsageError('anchor="retained" needs images of the retained classes; pass retain= in the request.')
    if wanted != "views" and request.has("retain"):
        return "retained"
    inputs = request.forget.few(run)
    if has_views(inputs):
        return "views"
    if wanted == "views":
        raise UsageError(
            f"The inputs of shape {tuple(inputs.shape)} are not images, so they have no copies; leave anchor= out, or "
            "pass retain= in the request."
        )
    return "none"


class AnchoredSteps:
    """Batches of forget images with their labels and with anchors, as many as there are steps.

    Every step has ``batch_size`` forget images, whatever the sizes of the source's batches: a set of fewer images is
    repeated, and larger batches are divided.

    Args:
        request: Forget images and, for ``retained``, retained images.
        run: Seed and device.
        kind: Kind of the anchors, not ``none``.
        batch_size: Number of forget images per step.
        anchors: Number of anchors per step.
        steps: Number of steps.
        salt: Number that tells apart the draws of several loaders of one run.
        augment: Crop and mirror the forget images of a split at random.
    """

    def __init__(
        self,
        request: Granted,
        *,
        run: Run,
        kind: AnchorKind,
        batch_size: int,
        anchors: int,
        steps: int,
        salt: int = 0,
        augment: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self._run = run
        self._anchors = anchors
        self._steps = steps
        self._salt = salt
        self._forget = as_epochs(
            request.forget.training(run, batch_size=batch_size, augment=augment, salt=2 * salt), run
        )
        self._retain = None
        if kind == "retained":
            batches = request.retain.training(run, batch_size=anchors, augment=augment, salt=2 * salt + 1)
            self._retain = as_epochs(batches, run)

    def __len__(self) -> int:
        """Return the number of steps."""
        return self._steps

    def anchors(self) -> list[Tensor]:
        """Return the anchors of all steps of an epoch that no training uses."""
        return [anchors for _, _, anchors in self.epoch(1)]

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield (images, labels, anchors) for each step."""
        place = self._run.torch_device
        seed = int(np.random.SeedSequence([self._run.seed, self._salt, number]).generate_state(1)[0])
        generator = torch.Generator(device=place).manual_seed(seed)
        retained = None if self._retain is None else _regrouped(self._retain, self._anchors, place, number)
        forget = _regrouped(self._forget, self.batch_size, place, number)
        for _ in range(self._steps):
            images, labels = next(forget)
            if retained is None:
                yield images, labels, transformed_copies(images, self._anchors, generator)
            else:
                yield images, labels, next(retained)[0]


def first_images(batches: Iterable[tuple[Tensor, Tensor]], limit: int, run: Run) -> list[tuple[Tensor, Tensor]]:
    """Return the first batches of images in [0, 1] and labels, at most ``limit`` images, on the run's device."""
    found: list[tuple[Tensor, Tensor]] = []
    for images, labels in checked_batches(batches):
        found.append((to_unit(images[:limit].to(run.torch_device)), labels[:limit].to(run.torch_device)))
        limit -= len(labels)
        if limit <= 0:
            break
    return found


def _regrouped(batches: Epochs, size: int, place: torch.device, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of exactly ``size`` images without end, from one epoch after the other."""
    waiting: list[tuple[Tensor, Tensor]] = []
    count = 0
    # The epochs of two rounds must not be shuffled alike.
    epoch = 100_000 * number
    while True:
        before = count
        for images, labels in checked_batches(batches.epoch(epoch)):
            waiting.append((to_unit(images.to(place)), labels.to(place)))
            count += len(labels)
            while count >= size:
                joined = [torch.cat(part) for part in zip(*_one_shape(waiting), strict=True)]
                yield joined[0][:size], joined[1][:size]
                waiting = [(joined[0][size:], joined[1][size:])]
                count -= size
            before = -1
        if before == count:
            raise UsageError("The request holds no batches; give some images.")
        epoch += 1


def _one_shape(batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    shapes = {tuple(images.shape[1:]) for images, _ in batches}
    if len(shapes) > 1:
        raise UsageError(
            f"The batches have images of the shapes {' and '.join(map(str, sorted(shapes)))}; bring them to one shape."
        )
    return batches
