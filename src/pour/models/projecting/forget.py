"""POUR-P for any classifier: put a projector in front of the head."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pour.data.classes import ClassRequest, resolve_classes
from pour.data.samples import as_batches
from pour.errors import UsageError, check_choice
from pour.geometry.fitter import ProjectorFitter
from pour.models.card import change_card, names_of_scores
from pour.models.clip.dual_encoder import ImageProjection, find_image_projection
from pour.models.head import Example, Head, find_head, heads_of
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.projecting.check_mask import check_mask, check_retained_biases
from pour.models.projecting.direction import HeadDirection, check_finite, class_removal, class_removals
from pour.models.projecting.project import project_with_entry, projector_along
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead
from pour.models.tap import device_of, tap_features, to_unit
from pour.models.unwrap import check_weights, unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pour.geometry.eraser import Eraser
    from pour.geometry.projector import Projector

__all__ = ["Direction", "find_place", "forget"]

# Number of images per batch of a dataset.
_BATCH = 64

Direction = Literal["auto", "weights", "centered-weights", "scores", "decisions", "means", "centered-means"]
"""Direction to remove: the class's row of the head, its mean feature, or either minus the mean over classes.

Adding one vector to all rows changes no decision, so the network's decisions determine only the centred rows. On a
simplex the rows are centred already. `"scores"` and `"decisions"` move the features to a point at which the class's
score is the mean of all scores. `"scores"` is the shortest such move. `"decisions"` is the shortest move that shifts
all other scores alike. On a simplex with equal biases all directions are the same. `"auto"` takes `"decisions"` if it
is well conditioned, otherwise `"scores"`, see `choose_direction`.
"""


def forget(
    model: nn.Module,
    classes: ClassRequest | None = None,
    *,
    directions: Tensor | None = None,
    direction: Direction = "auto",
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    forgotten_logit: ForgottenLogit = "mask",
) -> nn.Module:
    r"""Return a copy of `model` with a projection in front of its head that removes `classes` (the paper's POUR-P).

    With the paper's `direction="weights"` the projection is $P = I - Q^\top Q$, with Q an orthonormal basis of
    the classes' rows, so that the scores are `W P z + b`. The encoder does not change, and neither does `model`. A
    later request on the result extends its projection: class 0 first and class 3 later, in the same direction, is the
    same as both at once. A `torch.compile` or parallel wrapper is removed. In a dual encoder (CLIP, SigLIP) the
    projector is placed behind the visual projection, before the embedding is normalised.

    **Guarantee.** With `"auto"`, `"decisions"` and `"scores"` a forgotten class never wins, even with its own row
    kept (`forgotten_logit="keep"`): its score is the mean of all scores, so one retained score is at least as high.
    This holds for every head that computes `W z + b`, for all weights, biases and features. `"decisions"` also
    keeps every decision between retained classes exactly. It exists for heads with at most as many classes as features
    + 1 and independent rows. `"auto"` takes it if it moves the features at most four times as far as `"scores"`. This
    is so on collapsed networks, and on most heads with several times as many features as classes. Otherwise `"auto"`
    takes `"scores"`, and decisions between retained classes may change. The history records the chosen direction. The
    guarantee remains after later requests if they use one of these three directions too.

    Args:
        model: Any classifier with a linear or 1x1-convolution head, or a dual encoder.
        classes: Indices or names of the classes to forget; at least two classes must remain.
        directions: Directions to remove instead, (k, d) or (d,), such as text embeddings. `classes` then only selects
            the scores for `forgotten_logit`.
        direction: Direction of `classes`, see `Direction`. Means need `data`.
        data: A dataset or batches of images and labels for class means. Means need images of the forgotten classes,
            centred means need images of all classes.
        head: Dotted name of the head, if it cannot be found. Several names are heads whose scores the model averages
            or adds. Each head gets its own projector.
        example: A small batch of inputs that finds and verifies the head; by default the first batch of `data`.
        forgotten_logit: Scores of the forgotten classes: "mask" (a large finite negative number, never predicted),
            "keep" (as printed in the paper) or "zero".

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> forgotten = forget(model, classes=[0])
        >>> bool((forgotten(torch.rand(8, 2, 2)).argmax(dim=1) == 0).any())
        False
    """
    start = time.perf_counter()
    _check_arguments(classes, directions, direction, data, forgotten_logit)
    model = unwrap(model)
    check_weights(model)
    place, data, example = find_place(model, head, example, data)
    if isinstance(place, ImageProjection):
        if directions is None or classes is not None:
            raise UsageError(
                f"A {type(model).__name__} has no classes of its own; pass directions= alone (text embeddings), or "
                "make a classifier of it with pour.models.zero_shot_classifier."
            )
        along = [projector_along(directions, place)]
        return project_with_entry(model, along, [place], {"direction": "given"}, start=start)
    heads = heads_of(model, place)
    for each in heads:
        check_finite(each, earlier=forgotten_before(model))
    indices = () if classes is None else _indices(model, place, classes)
    earlier = forgotten_before(model)
    projectors: list[Projector] = []
    if directions is not None:
        projectors, taken = [projector_along(directions, each) for each in place.each], "given"
    elif direction == "means" or direction == "centered-means":
        means = _means(model, place, indices, data or (), centered=direction == "centered-means")
        parts = torch.split(means, [each.num_features for each in place.each], dim=1)
        pairs = zip(parts, place.each, strict=True)
        projectors, taken = [projector_along(part, each) for part, each in pairs], direction
    removals: list[Projector | Eraser] = [*projectors]
    if not projectors:
        removals, taken = class_removals(heads, indices, direction, earlier=earlier)  # type: ignore[arg-type]
    elif indices:
        # Heads that are used in training alone have no features here, so their directions come from their rows.
        removals += [class_removal(each, indices, "auto", earlier=earlier)[0] for each in heads[len(projectors) :]]
    if forgotten_logit == "mask":
        for each in heads:
            check_retained_biases(each, indices)
    settings = {"direction": taken, "forgotten_logit": forgotten_logit}
    result = project_with_entry(
        model,
        removals,
        heads[: len(removals)],
        settings,
        classes=indices,
        forgotten_logit=forgotten_logit,
        start=start,
    )
    if place.further_heads:
        change_card(result, head=place.names)
    if example is not None:
        check_mask(result, place.names, example)
    return result


def find_place(
    model: nn.Module,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    data: Iterable[Any] | None = None,
) -> tuple[Head | ImageProjection, Iterable[Any] | None, Example | None]:
    """Return the head or image embedding, `data` with its first batch again, and the input that verified the head.

    The head is verified on `example`, by default on the first batch of `data`.
    """
    embedding = find_image_projection(model) if head is None else None
    if embedding is not None:
        return embedding, data, None
    if example is not None or data is None:
        return find_head(model, head=head, example=example), data, example
    batches = as_batches(data, _BATCH)
    first = next(batches, None)
    if first is None:
        return find_head(model, head=head), (), None
    images, labels = first
    place = head_on_images(model, images, head=head)
    highest = int(labels.max())
    if highest >= place.num_classes:
        problem = f"The head {place.name!r} gives {place.num_classes} scores, but data= has the label {highest}"
        raise UsageError(f"{problem}; pass a model with one score per class.")
    few = to_unit(images[:FEW_IMAGES]).to(device_of(model), place.weight.dtype)
    return place, itertools.chain([first], batches), few


def _indices(model: nn.Module, head: Head, classes: ClassRequest) -> tuple[int, ...]:
    already = forgotten_before(model)
    if isinstance(head.module, ProjectedHead):
        already |= set(head.module.forgotten)
    names = names_of_scores(model, head.num_classes)
    return resolve_classes(classes, num_classes=head.num_classes, class_names=names, already=sorted(already))


def _check_arguments(
    classes: object, directions: Tensor | None, direction: Direction, data: object, forgotten_logit: ForgottenLogit
) -> None:
    """Raise UsageError if the arguments contradict each other."""
    if classes is None and directions is None:
        raise UsageError("Nothing to forget was named; pass classes= or directions=.")
    check_choice("direction", direction, get_args(Direction))
    check_choice("forgotten_logit", forgotten_logit, get_args(ForgottenLogit))
    if directions is not None and (direction != "auto" or data is not None):
        raise UsageError("directions= are set, so direction= and data= have no effect; leave them out.")
    if direction in get_args(HeadDirection) and data is not None:
        raise UsageError('data= is only read for class means; add direction="means", or leave data= out.')
    if direction not in get_args(HeadDirection) and data is None and directions is None:
        raise UsageError(f"direction={direction!r} needs images; pass data= (batches of images and labels).")


def _means(model: nn.Module, head: Head, indices: tuple[int, ...], data: Iterable[Any], *, centered: bool) -> Tensor:
    """Return the mean features of the forgotten classes, (k, d)."""
    fitter = ProjectorFitter(classes=list(indices), centered=centered)
    device = device_of(model)
    with evaluating(model), torch.inference_mode(), tap_features(model, head) as tap:
        for images, labels in as_batches(data, _BATCH):
            model(to_unit(images.to(device)).to(head.weight.dtype))
            # Features before the projector are used, because an earlier projector would change the direction.
            features = tap.raw.movedim(head.dim, -1)
            if labels.ndim == 1 and features.ndim > 2:
                features = features.flatten(1, -2).mean(dim=1)
            # Labels of pixels can be void, so only labels of images are checked.
            outside = labels[(labels < 0) | (labels >= head.num_classes)] if labels.ndim == 1 else labels[:0]
            if len(outside):
                problem = f"A batch has the label {outside[0].item()}, but the model"
                raise UsageError(f"{problem} has classes 0 to {head.num_classes - 1}; correct the labels.")
            if features.shape[:-1] != labels.shape:
                problem = f"Labels of shape {tuple(labels.shape)} do not fit features of shape {tuple(features.shape)}"
                raise UsageError(f"{problem}; pass one label per image, or one per position.")
            fitter.update(features, labels.to(device))
    missing = [index for index, count in zip(indices, fitter.counts.tolist(), strict=True) if not count]
    if missing:
        raise UsageError(f"data= contains no image of class {missing[0]}; its mean needs at least one.")
    if centered and fitter.num_classes < 2:
        raise UsageError(
            'direction="centered-means" needs images of all classes, and data= contains one class; take '
            'direction="means".'
        )
    return fitter.directions
