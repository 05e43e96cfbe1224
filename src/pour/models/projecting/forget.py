"""POUR-P for any classifier: put a projector in front of the head."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pour.data.classes import ClassRequest, resolve_classes
from pour.data.samples import checked_batch
from pour.errors import UsageError
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.projector import Projector
from pour.models.card import names_of_scores
from pour.models.clip.dual_encoder import ImageProjection, find_image_projection
from pour.models.copy_and_swap import copy_model
from pour.models.head import Example, Head, find_head
from pour.models.head_on_images import head_on_images
from pour.models.history import HistoryEntry, add_entry, forgotten_before
from pour.models.modes import evaluating
from pour.models.projecting.direction import HeadDirection, check_finite, class_removal
from pour.models.projecting.project import as_precise, project
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead
from pour.models.state import digest, tensor_digest
from pour.models.tap import checked_batches, device_of, tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pour.geometry.eraser import Eraser

__all__ = ["Direction", "find_place", "forget", "project_with_entry", "projector_along"]

Direction = Literal["auto", "weights", "centered-weights", "scores", "decisions", "means", "centered-means"]
"""What is taken away: a class's row of the head, its mean feature, or either less the mean over classes; or its score.

Adding one vector to all rows changes no decision, so only the centred rows are determined by what a network decides; on
a simplex the rows are centred already. With ``"scores"`` and ``"decisions"`` the features go to where the class's score
is the mean of all scores: the former by the shortest way, the latter by the shortest of those that shift all other
scores alike. On a simplex with equal biases all of these are the same. ``"auto"`` takes ``"decisions"`` if it is well
conditioned, otherwise ``"scores"``, see :func:`~pour.models.projecting.direction.choose_direction`.
"""


def forget(
    model: nn.Module,
    classes: ClassRequest | None = None,
    *,
    directions: Tensor | None = None,
    direction: Direction = "auto",
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    head: str | None = None,
    example: Example | None = None,
    forgotten_logit: ForgottenLogit = "mask",
) -> nn.Module:
    r"""Return a copy of ``model`` whose head no longer sees the directions of ``classes`` (the paper's POUR-P).

    A projection goes in front of the head. With the paper's ``direction="weights"`` it is :math:`P = I - Q^\top Q`,
    with Q an orthonormal basis of the classes' rows, so that the scores are ``W P z + b``. The encoder is not changed,
    and neither is the model passed in. A later request on the result adds to its projection: first 0, then 3, in the
    same direction gives the same as both at once. A ``torch.compile`` or parallel wrapper is taken off. In a dual
    encoder (CLIP, SigLIP) the projector goes behind the visual projection, before the embedding is normalised.

    **Guarantee.** With ``"auto"``, ``"decisions"`` and ``"scores"`` a forgotten class never wins, even with its own row
    kept (``forgotten_logit="keep"``): its score is the mean of all scores, so one retained score is at least as high.
    This holds for every head that computes ``W z + b``, for all weights, biases and features. ``"decisions"`` also
    keeps every decision between retained classes exactly. It exists for heads with at most as many classes as features
    + 1 and independent rows. ``"auto"`` takes it if it moves the features at most four times as far as ``"scores"`` (as
    on collapsed networks, and on most heads with several times as many features as classes). Otherwise ``"auto"`` takes
    ``"scores"``, and decisions between retained classes may change. The history records the direction taken. Later
    requests keep the guarantee if they take one of these three directions too.

    Args:
        model: Any classifier with a linear or 1x1-convolution head, or a dual encoder.
        classes: Indices or names of the classes to forget; at least two classes must remain.
        directions: Directions to remove instead, (k, d) or (d,), such as text embeddings. ``classes`` then only says
            which scores ``forgotten_logit`` is about.
        direction: Where the directions of ``classes`` come from, see :data:`Direction`; means need ``data``.
        data: Batches of (images, labels), for means: of the forgotten classes, and for centred means of all classes.
        head: Dotted name of the head, if it is not found by itself.
        example: A small batch of inputs on which to find and verify the head; by default the first batch of ``data``.
        forgotten_logit: The forgotten classes' own scores: "mask" (a large finite negative number, never predicted),
            "keep" (as printed in the paper) or "zero".

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> forgotten = forget(model, classes=[0])
        >>> bool((forgotten(torch.rand(8, 2, 2)).argmax(dim=1) == 0).any())
        False
    """
    start = time.perf_counter()
    _check_arguments(classes, directions, direction, data, forgotten_logit)
    model = copy_model(unwrap(model))
    place, data = find_place(model, head, example, data)
    indices: tuple[int, ...] = ()
    if isinstance(place, ImageProjection):
        if directions is None or classes is not None:
            raise UsageError(
                f"A {type(model).__name__} has no classes of its own; give directions= alone (text embeddings), or "
                "make a classifier of it with pour.models.zero_shot_classifier."
            )
    else:
        check_finite(place)
        if classes is not None:
            indices = _indices(model, place, classes)
    removal: Projector | Eraser
    if directions is not None:
        removal = projector_along(directions, place)
    elif isinstance(place, Head) and direction in get_args(HeadDirection):
        removal, direction = class_removal(place, indices, direction, earlier=forgotten_before(model))  # type: ignore[arg-type]
    elif isinstance(place, Head):
        means = _means(model, place, indices, data or (), centered=direction == "centered-means")
        removal = projector_along(means, place)
    settings: dict[str, Any] = {"direction": direction if directions is None else "given"}
    if isinstance(place, Head):
        settings["forgotten_logit"] = forgotten_logit
    return project_with_entry(
        model, removal, place, settings, classes=indices, forgotten_logit=forgotten_logit, start=start
    )


def project_with_entry(
    model: nn.Module,
    removal: Projector | Eraser,
    place: Head | ImageProjection,
    settings: Mapping[str, Any],
    *,
    start: float,
    classes: tuple[int, ...] = (),
    forgotten_logit: ForgottenLogit = "mask",
) -> nn.Module:
    """Put ``removal`` in front of ``place``, in place, and add an entry to the model's history.

    Args:
        model: Network, changed in place.
        removal: Projector or eraser.
        place: Head or image embedding of the model.
        settings: Options for the entry.
        start: Time at which the request began, from ``time.perf_counter``.
        classes: Indices of the forgotten classes.
        forgotten_logit: Score of the forgotten classes.
    """
    names = names_of_scores(model, place.num_classes) if isinstance(place, Head) else None
    # Only the projector is new, so each tensor is read once for both digests.
    contents = {name: tensor_digest(tensor) for name, tensor in model.state_dict().items()}
    digest_before = digest(model.state_dict(), computed=contents)
    result = project(model, removal, place=place, classes=classes, forgotten_logit=forgotten_logit)
    projected: Any = result.get_submodule(place.name)
    add_entry(
        result,
        HistoryEntry(
            method="pour-p",
            classes=classes,
            class_names=tuple(names[index] for index in classes) if names else (),
            options={
                **settings,
                "head" if isinstance(place, Head) else "layer": place.name,
                "rank": projected.projector.rank,
            },
            digest_before=digest_before,
            digest_after=_digest_after(result, place, contents),
            seconds=time.perf_counter() - start,
        ),
    )
    return result


def find_place(
    model: nn.Module, head: str | None = None, example: Example | None = None, data: Iterable[Any] | None = None
) -> tuple[Head | ImageProjection, Iterable[Any] | None]:
    """Return the head or image embedding, and ``data`` from its beginning.

    The head is verified on ``example`` or on the first batch of ``data``.
    """
    embedding = find_image_projection(model) if head is None else None
    if embedding is not None:
        return embedding, data
    if example is not None or data is None:
        return find_head(model, head=head, example=example), data
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        return find_head(model, head=head), ()
    return head_on_images(model, checked_batch(first)[0], head=head), itertools.chain([first], batches)


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
        raise UsageError("Nothing to forget was named; give classes= or directions=.")
    for option, value, known in (
        ("direction", direction, get_args(Direction)),
        ("forgotten_logit", forgotten_logit, get_args(ForgottenLogit)),
    ):
        if value not in known:
            raise UsageError(f"{option} is {value!r}; choose one of {', '.join(map(repr, known))}.")
    if directions is not None and (direction != "auto" or data is not None):
        raise UsageError("directions= are given, so direction= and data= have no use; leave them out.")
    if direction in get_args(HeadDirection) and data is not None:
        raise UsageError('data= is only read for class means; add direction="means", or leave data= out.')
    if direction not in get_args(HeadDirection) and data is None and directions is None:
        raise UsageError(f"direction={direction!r} needs images; pass data= (batches of images and labels).")


def projector_along(directions: Tensor, place: Head | ImageProjection) -> Projector:
    """Return the projector that removes ``directions``. Raise UsageError if their shape does not fit ``place``.

    Args:
        directions: (k, d) or (d,), of any scale.
        place: Head or image embedding with features of width d.
    """
    if not isinstance(directions, Tensor) or directions.ndim not in (1, 2):
        raise UsageError("directions= must be a tensor of shape (k, d) or (d,).")
    if directions.shape[-1] != place.num_features:
        expected = (
            f"the head {place.name!r} takes {place.num_features} features; give directions of that width."
            if isinstance(place, Head)
            else f"the image embedding has {place.num_features}; embed the texts with the same model."
        )
        raise UsageError(f"The directions have width {directions.shape[-1]}, but {expected}")
    return Projector.from_directions(as_precise(directions, place))


def _means(model: nn.Module, head: Head, indices: tuple[int, ...], data: Iterable[Any], *, centered: bool) -> Tensor:
    fitter = ProjectorFitter(classes=list(indices), centered=centered)
    place = device_of(model)
    seen: set[int] = set()
    with evaluating(model), torch.inference_mode(), tap_features(model, head) as tap:
        for images, labels in checked_batches(data):
            model(to_unit(images.to(place)).to(head.weight.dtype))
            # The encoder's own features: an earlier projector must not bend the direction of a later request.
            features = tap.raw.movedim(head.dim, -1)
            if labels.ndim == 1 and features.ndim > 2:
                features = features.flatten(1, -2).mean(dim=1)
            if features.shape[:-1] != labels.shape:
                raise UsageError(
                    f"Labels of shape {tuple(labels.shape)} do not fit features of shape {tuple(features.shape)}; "
                    "give one label per image, or one per position."
                )
            fitter.update(features, labels.to(place))
            seen.update(torch.unique(labels).tolist())
    missing = [index for index, count in zip(indices, fitter.counts.tolist(), strict=True) if not count]
    if missing:
        raise UsageError(f"data= holds no image of class {missing[0]}; its mean needs at least one.")
    if centered and len(seen) < 2:
        raise UsageError(
            'direction="centered-means" needs images of all classes, and data= holds one alone; take direction="means".'
        )
    return fitter.directions


def _digest_after(model: nn.Module, place: Head | ImageProjection, contents: Mapping[str, str]) -> str:
    """Return the digest of the projected model, and read only tensors that the original did not have."""
    prefix = f"{place.name}." if place.name else ""
    inner = "head" if isinstance(place, Head) else "layer"
    moved = {f"{prefix}{inner}.{name.removeprefix(prefix)}": value for name, value in contents.items()}
    # The projector of a later request has the same name as that of the earlier one.
    known = {k: v for k, v in {**moved, **contents}.items() if not k.startswith(f"{prefix}projector.")}
    return digest(model.state_dict(), computed=known)
