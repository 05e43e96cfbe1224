"""POUR-P for any classifier: put a projector in front of the head."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pour.data.classes import ClassRequest, resolve_classes
from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.projector import Projector
from pour.models.check_data import names_of_scores
from pour.models.clip.dual_encoder import find_image_projection
from pour.models.clip.forget import forget_embedding
from pour.models.copy_and_swap import copy_model, swap_module
from pour.models.head import Example, Head, find_head
from pour.models.head_on_images import head_on_images
from pour.models.history import HistoryEntry, add_entry, forgotten_before
from pour.models.modes import evaluating
from pour.models.projecting.direction import HeadDirection, choose_direction, head_removal
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead
from pour.models.state import digest, tensor_digest
from pour.models.tap import checked_batch, checked_batches, device_of, tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Direction", "forget"]

Direction = Literal["auto", "weights", "centered-weights", "scores", "decisions", "means", "centered-means"]
"""What is taken away: a class's row of the head, its mean feature, or either less the mean over classes; or its score.

Adding one vector to all rows changes no decision, so only the centred rows are determined by what a network decides; on
a simplex the rows are centred already. With ``"scores"`` and ``"decisions"`` the features go to where the class's score
is the mean of all scores: the former by the shortest way, the latter by the shortest of those that shift all other
scores alike. On a simplex with equal biases all of these are the same. ``"auto"`` takes ``"decisions"`` if it is well
conditioned, otherwise ``"scores"``, see :func:`~pour.models.projecting.direction.choose_direction`.
"""
_SETTING_SCORES = ("auto", "scores", "decisions")


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
    if classes is None and directions is None:
        raise UsageError("Nothing to forget was named; give classes= or directions=.")
    _check_choice("direction", direction, get_args(Direction))
    _check_choice("forgotten_logit", forgotten_logit, get_args(ForgottenLogit))
    _check_sources(direction, directions, data)
    model = unwrap(model)
    if head is None and find_image_projection(model) is not None:
        if directions is None or classes is not None:
            raise UsageError(
                f"A {type(model).__name__} has no classes of its own; give directions= alone (text embeddings), or "
                "make a classifier of it with pour.models.zero_shot_classifier."
            )
        return forget_embedding(model, directions)
    found, data = _found(model, head, example, data)
    _check_finite(found)
    before = found.module if isinstance(found.module, ProjectedHead) else None
    earlier = forgotten_before(model)
    names = names_of_scores(model, found.num_classes)
    indices: tuple[int, ...] = ()
    if classes is not None:
        already = earlier | set(before.forgotten if before is not None else ())
        indices = resolve_classes(classes, num_classes=found.num_classes, class_names=names, already=sorted(already))

    projector: Projector | Eraser
    if directions is None and direction in get_args(HeadDirection):
        # A later request must not move the scores of an earlier one off the mean, so it sets them all.
        renewed = before.forgotten if before is not None and direction in _SETTING_SCORES else ()
        together = tuple(sorted({*renewed, *indices}))
        if direction == "auto":
            direction = choose_direction(found, together, earlier=earlier)
        projector = head_removal(found, together, direction, earlier=earlier)  # type: ignore[arg-type]
    else:
        rows = (
            _means(model, found, indices, data or (), centered=direction == "centered-means")
            if directions is None
            else _checked_directions(directions, found)
        )
        projector = Projector.from_directions(_precise(rows, found))
    forgotten, logit = indices, forgotten_logit
    if before is not None:
        projector = Eraser.after(before.projector, projector)
        forgotten, logit = _joined(before, indices, forgotten_logit)

    result = copy_model(model)
    place = result.get_submodule(found.name)
    layer = place.head if isinstance(place, ProjectedHead) else place
    projected = ProjectedHead(layer, projector, forgotten=forgotten, forgotten_logit=logit)
    projected.train(place.training)
    # Only the projector is new, so the tensors are read once for both digests.
    contents = {name: tensor_digest(tensor) for name, tensor in model.state_dict().items()}
    digest_before = digest(model.state_dict(), known=contents)
    result = swap_module(result, place, projected)
    options: dict[str, Any] = {
        "direction": direction if directions is None else "given",
        "forgotten_logit": forgotten_logit,
        "head": found.name,
        "rank": projector.rank,
    }
    add_entry(
        result,
        HistoryEntry(
            method="pour-p",
            classes=indices,
            class_names=tuple(names[index] for index in indices) if names else (),
            options=options,
            digest_before=digest_before,
            digest_after=_digest_after(result, found, contents),
            seconds=time.perf_counter() - start,
        ),
    )
    return result


def _found(
    model: nn.Module, head: str | None, example: Example | None, data: Iterable[Any] | None
) -> tuple[Head, Iterable[Any] | None]:
    """Return the head, verified on ``example`` or on the first batch of ``data``, and ``data`` from its beginning."""
    if example is not None or data is None:
        return find_head(model, head=head, example=example), data
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        return find_head(model, head=head), ()
    found = head_on_images(model, checked_batch(first)[0], head=head)
    return found, itertools.chain([first], batches)


def _precise(values: Tensor, head: Head) -> Tensor:
    """The values detached, on the head's device and in at least single precision."""
    return values.detach().to(head.weight.device, torch.promote_types(head.weight.dtype, torch.float32))


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"{option} is {value!r}; choose one of {', '.join(repr(choice) for choice in choices)}.")


def _check_sources(direction: Direction, directions: Tensor | None, data: object) -> None:
    if directions is not None and (direction != "auto" or data is not None):
        raise UsageError("directions= are given, so direction= and data= have no use; leave them out.")
    if direction in get_args(HeadDirection) and data is not None:
        raise UsageError('data= is only read for class means; add direction="means", or leave data= out.')
    if direction not in get_args(HeadDirection) and data is None and directions is None:
        raise UsageError(f"direction={direction!r} needs images; pass data= (batches of images and labels).")


def _check_finite(head: Head) -> None:
    # A sum needs no second C x d tensor, and any NaN or infinity survives it; overflow alone is told apart below.
    if torch.isfinite(head.weight.sum()):
        return
    bad = (~torch.isfinite(head.weight).all(dim=1)).nonzero()
    if len(bad):
        raise UsageError(
            f"The head {head.name!r} has NaN or infinite weights (row {int(bad[0])} is the first); "
            "load a sound checkpoint before forgetting."
        )


def _checked_directions(directions: Tensor, head: Head) -> Tensor:
    if not isinstance(directions, Tensor) or directions.ndim not in (1, 2):
        raise UsageError("directions= must be a tensor of shape (k, d) or (d,).")
    if directions.shape[-1] != head.num_features:
        raise UsageError(
            f"The directions have width {directions.shape[-1]}, but the head {head.name!r} takes "
            f"{head.num_features} features; give directions of that width."
        )
    return directions


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


def _joined(
    before: ProjectedHead, indices: tuple[int, ...], forgotten_logit: ForgottenLogit
) -> tuple[tuple[int, ...], ForgottenLogit]:
    """The classes of both requests, which must treat their scores alike."""
    if not indices:
        return before.forgotten, before.forgotten_logit
    if before.forgotten and before.forgotten_logit != forgotten_logit:
        raise UsageError(
            f"The model already forgot classes with forgotten_logit={before.forgotten_logit!r}; pass the same now "
            f"instead of {forgotten_logit!r}, or fold the model first."
        )
    return tuple(sorted({*before.forgotten, *indices})), forgotten_logit


def _digest_after(model: nn.Module, head: Head, contents: Mapping[str, str]) -> str:
    """The digest of the projected model, reading only tensors that the original did not have."""
    prefix = f"{head.name}." if head.name else ""
    moved = {f"{prefix}head.{name.removeprefix(prefix)}": value for name, value in contents.items()}
    known = {**moved, **contents}
    # What is in front of the head keeps its names when a later request replaces it.
    known = {name: value for name, value in known.items() if not name.startswith(f"{prefix}projector.")}
    return digest(model.state_dict(), known=known)
