"""Anchors: inputs on which a trained network must not change, retained images or copies of the forget images."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from pour.data.samples import checked_batch
from pour.errors import UsageError
from pour.models.tap import to_unit
from pour.unlearning.toolkit.batches import EpochsFrom
from pour.unlearning.user_batches import join_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Anchor", "AnchorKind", "anchor_kind", "anchored_steps", "has_copies", "transformed_copies", "with_copies"]

Anchor = Literal["auto", "views", "retained"]
"""Anchors to use: transformed copies of the forget images, or retained images. `auto` takes retained images if the
request has them, otherwise copies."""
AnchorKind = Literal["views", "retained", "none"]
"""Anchors of a run; `none` if the inputs are not images and there are no retained images."""

# Smaller planes have too few distinct shifts.
_SMALLEST_SIDE = 4
_LARGEST_SHIFT = 3 / 8
_CHANNELS = 3
_COPIES_PER_IMAGE = 2
# Seeds of the copies must differ from those of the loader that shuffles the images.
_SALT = 23


def has_copies(inputs: Tensor) -> bool:
    """Return whether `inputs` are planes that can be rolled and turned: (n, ..., height, width), floats or uint8.

    Examples:
        >>> has_copies(torch.zeros(2, 3, 8, 6)), has_copies(torch.zeros(2, 64))
        (True, False)
    """
    pixels = inputs.is_floating_point() or inputs.dtype == torch.uint8
    return pixels and inputs.ndim >= 3 and min(inputs.shape[-2:]) >= _SMALLEST_SIDE


def anchor_kind(requested: Anchor, request: Granted) -> AnchorKind:
    """Return the kind of the anchors of a run.

    Raises:
        UsageError: Retained images were requested, and the request has none; or copies of inputs that are not images.
    """
    if requested == "retained" and not request.has("retain"):
        raise UsageError('anchor="retained" needs images of the retained classes; pass retain= in the request.')
    if requested != "views" and request.has("retain"):
        return "retained"
    inputs = request.forget.few()
    if has_copies(inputs):
        return "views"
    if requested == "views":
        raise UsageError(
            f'anchor="views" transforms images, but {request.name} got inputs of shape {tuple(inputs.shape[1:])} and '
            f"type {inputs.dtype}, which are not images; leave anchor= out."
        )
    return "none"


def with_copies(batches: Epochs, run: Run) -> EpochsFrom:
    """Return batches of images, each extended by twice as many transformed copies of its images.

    The copies are part of the batches and not of the loss, because a step in a captured graph would repeat its draws.
    """

    def epoch(number: int) -> Iterator[tuple[Tensor, ...]]:
        generator = _generator(run, _SALT, number)
        for images, *others in batches.epoch(number):
            images = to_unit(images.to(run.torch_device))
            yield images, *others, transformed_copies(images, _COPIES_PER_IMAGE * len(images), generator)

    return EpochsFrom(len(batches), epoch)


def anchored_steps(
    request: Granted,
    run: Run,
    kind: AnchorKind,
    *,
    batch_size: int,
    anchors: int,
    steps: int,
    salt: int = 0,
    augment: bool = False,
) -> EpochsFrom:
    """Return batches of forget images with their labels and with anchors, one batch per step.

    Every step has `batch_size` forget images, whatever the sizes of the source's batches: a set of fewer images is
    repeated, and larger batches are divided.

    Args:
        request: Forget images and, for `retained`, retained images.
        run: Seed and device.
        kind: Kind of the anchors, not `none`.
        batch_size: Number of forget images per step.
        anchors: Number of anchors per step.
        steps: Number of steps.
        salt: Number that distinguishes the random draws of several loaders of one run.
        augment: Crop and mirror the forget images of a split at random.
    """
    forget = request.forget.training(run, batch_size=batch_size, augment=augment, salt=2 * salt)
    retain = None
    if kind == "retained":
        retain = request.retain.training(run, batch_size=anchors, augment=augment, salt=2 * salt + 1)

    def epoch(number: int) -> Iterator[tuple[Tensor, ...]]:
        generator = _generator(run, salt, number)
        retained = None if retain is None else _regrouped(retain, anchors, run, number)
        for images, labels in itertools.islice(_regrouped(forget, batch_size, run, number), steps):
            copies = next(retained)[0] if retained else transformed_copies(images, anchors, generator)
            yield images, labels, copies

    return EpochsFrom(steps, epoch)


def _generator(run: Run, salt: int, number: int) -> torch.Generator:
    """Return the source of randomness of an epoch, on the device of the run."""
    seed = int(np.random.SeedSequence([run.seed, salt, number]).generate_state(1)[0])
    return torch.Generator(device=run.torch_device).manual_seed(seed)


def _regrouped(batches: Epochs, size: int, run: Run, number: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches of exactly `size` images without end, from one epoch after the other."""
    waiting: list[tuple[Tensor, Tensor]] = []
    # Two rounds must not have the same order of images.
    for epoch in itertools.count(100_000 * number):
        is_empty = True
        for images, labels in map(checked_batch, batches.epoch(epoch)):
            is_empty = False
            waiting.append((to_unit(images.to(run.torch_device)), labels.to(run.torch_device)))
            while sum(len(part) for _, part in waiting) >= size:
                images, labels = join_batches(waiting)
                yield images[:size], labels[:size]
                waiting = [(images[size:], labels[size:])]
        if is_empty:
            raise UsageError("The request contains no batches; pass some images.")


def transformed_copies(images: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return `count` transformed copies of `images` that seldom still look like their class.

    Each copy starts from a random image. Each of these steps is applied with a probability of its own:

    1. The upper and lower or the left and right half is exchanged with a half of another image.
    2. The copy is turned by a multiple of 90 degrees (180 if it is not square) and mirrored.
    3. It is rolled by up to 3/8 of each side.
    4. Its three colour channels are permuted.
    5. It is blended with another copy.
    6. It gets noise of up to half of its value range.

    Args:
        images: Floats of shape (n, ..., height, width).
        count: Number of copies.
        generator: Source of randomness, on the device of `images`.

    Examples:
        >>> generator = torch.Generator().manual_seed(0)
        >>> transformed_copies(torch.rand(2, 1, 8, 8), 5, generator).shape
        torch.Size([5, 1, 8, 8])
    """
    place = images.device

    def drawn(limit: int) -> Tensor:
        return torch.randint(limit, (count,), generator=generator, device=place)

    def share(probability: float) -> Tensor:
        is_chosen = torch.rand(count, generator=generator, device=place) < probability
        return is_chosen.view(-1, *[1] * (images.ndim - 1))

    copies = images[drawn(len(images))]
    for axis, probability in ((-2, 0.4), (-1, 0.3)):
        half = copies.shape[axis] // 2
        other = images[drawn(len(images))]
        rest = copies.shape[axis] - half
        exchanged = torch.cat([copies.narrow(axis, rest, half), other.narrow(axis, 0, rest)], dim=axis)
        copies = torch.where(share(probability), exchanged, copies)
    if copies.shape[-1] == copies.shape[-2]:
        copies = torch.where(share(0.5), copies.transpose(-1, -2), copies)
    turned = share(0.5)
    for axis in (-2, -1):
        # Without a transposition, both flips together are the half turn of an image that is not square.
        copies = torch.where(turned if axis == -2 else share(0.5), copies.flip(axis), copies)
    for axis in (-2, -1):
        copies = _rolled(copies, axis, generator)
    if copies.ndim == 4 and copies.shape[1] == _CHANNELS:
        order = torch.rand(count, _CHANNELS, generator=generator, device=place).argsort(dim=1)
        permuted = copies.gather(1, order.view(count, _CHANNELS, 1, 1).expand_as(copies))
        copies = torch.where(share(0.5), permuted, copies)
    weight = torch.rand(share(0).shape, generator=generator, device=place, dtype=images.dtype)
    blended = weight * copies + (1 - weight) * copies[drawn(count)]
    copies = torch.where(share(0.3), blended, copies)
    strength = 0.5 * torch.rand(weight.shape, generator=generator, device=place, dtype=images.dtype)
    strength = strength * share(0.7) * (images.amax() - images.amin())
    noise = torch.randn(copies.shape, generator=generator, device=place, dtype=images.dtype)
    return copies + strength * noise


def _rolled(copies: Tensor, axis: int, generator: torch.Generator) -> Tensor:
    """Roll each copy along `axis` by its own random number of pixels."""
    size = copies.shape[axis]
    limit = max(1, int(_LARGEST_SHIFT * size))
    shifts = torch.randint(-limit, limit + 1, (len(copies), 1), generator=generator, device=copies.device)
    places = (torch.arange(size, device=copies.device) + shifts) % size
    shape = [len(copies), *[1] * (copies.ndim - 1)]
    shape[axis] = size
    return copies.gather(copies.ndim + axis, places.view(shape).expand_as(copies))
