"""POUR-P for any classifier: put a projector in front of the head."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry.eraser import Eraser
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.projector import Projector
from pour.models import history as cards
from pour.models.classes import ClassRequest, names_of_scores, resolve_classes
from pour.models.dual import find_image_projection
from pour.models.dualforget import forget_embedding
from pour.models.head import Example, Head, find_head
from pour.models.located import head_on_images
from pour.models.modes import evaluating
from pour.models.projected import ForgottenLogit, ProjectedHead, is_masked
from pour.models.state import digest, tensor_digest
from pour.models.surgery import copy_model, swap_module
from pour.models.tap import checked_batch, checked_batches, device_of, tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Direction", "RowDirection", "forget", "head_removal"]

Direction = Literal["weights", "centered-weights", "scores", "decisions", "means", "centered-means"]
"""What is taken away: a class's row of the head, its mean feature, or either less the mean over classes; or its score.

Adding one vector to all rows changes no decision, so only the centred rows are determined by what a network decides; on
a simplex the rows are centred already. With ``"scores"`` and ``"decisions"`` the features go to where the class's score
is the mean of all scores: the former by the shortest way, the latter by the shortest of those that shift all other
scores alike. On a simplex with equal biases all of these are the same.
"""
RowDirection = Literal["weights", "centered-weights", "scores", "decisions"]
"""Those that the head alone tells."""


def forget(
    model: nn.Module,
    classes: ClassRequest | None = None,
    *,
    directions: Tensor | None = None,
    direction: Direction = "weights",
    data: Iterable[tuple[Tensor, Tensor]] | None = None,
    head: str | None = None,
    example: Example | None = None,
    forgotten_logit: ForgottenLogit = "mask",
) -> nn.Module:
    r"""Return a copy of ``model`` whose head no longer sees the directions of ``classes`` (the paper's POUR-P).

    In front of the head goes :math:`P = I - Q^\top Q`, with Q an orthonormal basis of the directions, so that the
    scores are ``W P z + b``. The encoder is not changed, and neither is the model passed in. A later request on the
    result adds to its projector: first 0, then 3, gives the same P as both at once. A ``torch.compile`` or parallel
    wrapper is taken off. In a dual encoder (CLIP, SigLIP) the projector goes behind the visual projection, before the
    embedding is normalised.

    With ``direction="scores"`` the projection is affine, onto the features at which each forgotten class scores the
    mean of all classes. Then it cannot win, whatever the network and even where its score is kept: the retained scores
    have the same mean, so one of them is at least as high. ``direction="decisions"`` ends at the same scores for the
    forgotten classes and keeps every decision between retained ones, exactly; it needs as many features as classes.

    Args:
        model: Any classifier with a linear or 1x1-convolution head, or a dual encoder.
        classes: Indices or names of the classes to forget; at least two classes must remain.
        directions: Directions to remove instead, (k, d) or (d,), such as text embeddings. ``classes`` then only says
            which scores ``forgotten_logit`` is about.
        direction: Where the directions of ``classes`` come from; means need ``data``.
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
    model = cards.unwrap(model)
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
    names = names_of_scores(model, found.num_classes)
    indices: tuple[int, ...] = ()
    if classes is not None:
        already = cards.forgotten_before(model) | set(before.forgotten if before is not None else ())
        indices = resolve_classes(classes, num_classes=found.num_classes, class_names=names, already=sorted(already))

    projector: Projector | Eraser
    if directions is None and direction in get_args(RowDirection):
        # A later request must not move an earlier one's scores off the mean, so that it sets them all.
        earlier = before.forgotten if before is not None and direction in ("scores", "decisions") else ()
        projector = head_removal(found, tuple(sorted({*earlier, *indices})), direction)  # type: ignore[arg-type]
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
    cards.add_record(
        result,
        cards.Record(
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


def head_removal(head: Head, classes: tuple[int, ...], direction: RowDirection) -> Projector | Eraser:
    """What takes ``classes`` out of the features of ``head``, from its own parameters.

    Args:
        head: as :func:`~pour.models.head.find_head` gives it.
        classes: indices.
        direction: see :data:`Direction`; an eraser where it takes more than an orthogonal projection through 0.
    """
    chosen = list(classes)
    rows = _rows(head, classes)
    if direction == "weights":
        return Projector.from_directions(_precise(rows, head))
    bias = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
    # A class that was masked before has no part in the mean of all scores; its bias alone would drown them.
    live = ~is_masked(bias)
    live[chosen] = True
    weight, others = head.weight[live], bias[live]
    rows = _precise(rows - weight.mean(dim=0), head)
    level = _precise(bias[chosen] - others.mean(), head)
    if direction == "decisions":
        places = (live.cumsum(dim=0)[chosen] - 1).tolist()
        return Eraser(_shifts(weight, places).to(rows), rows, -level)
    if direction == "centered-weights" or not bool((others != others[0]).any()):
        return Projector.from_directions(rows)
    return Eraser.onto(rows, level)


def _shifts(weight: Tensor, chosen: list[int]) -> Tensor:
    """For each chosen class the smallest feature (k, d) that raises its score and lowers all retained ones alike."""
    classes, width = weight.shape
    retained = [label for label in range(classes) if label not in chosen]
    centered = weight.detach().double() - weight.detach().double().mean(dim=0)
    wanted = torch.zeros(classes, len(chosen), dtype=torch.float64, device=centered.device)
    wanted[chosen, range(len(chosen))] = 1
    wanted[retained] = -1 / len(retained)
    # The centred rows sum to zero, so one of them says nothing that the others do not.
    kept = [label for label in range(classes) if label != retained[-1]]
    problem = f'direction="decisions" needs a head of at most {width + 1} classes whose rows are independent'
    if classes - 1 > width:
        raise UsageError(f'{problem}, but there are {classes}; take direction="scores".')
    basis, factor = torch.linalg.qr(centered[kept].T)
    size = factor.diagonal().abs()
    if bool((size <= 1e-8 * size.max()).any()):
        raise UsageError(f'{problem}, but these are not; take direction="scores".')
    coordinates = torch.linalg.solve_triangular(factor.T, wanted[kept], upper=False)
    shifts: Tensor = (basis @ coordinates).T
    return shifts


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
    if directions is not None and (direction != "weights" or data is not None):
        raise UsageError("directions= are given, so direction= and data= have no use; leave them out.")
    if direction in get_args(RowDirection) and data is not None:
        raise UsageError('data= is only read for class means; add direction="means", or leave data= out.')
    if direction not in get_args(RowDirection) and data is None and directions is None:
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


def _rows(head: Head, indices: tuple[int, ...]) -> Tensor:
    rows = head.weight[list(indices)]
    empty = [index for index, row in zip(indices, rows, strict=True) if not bool(row.any())]
    if empty:
        raise UsageError(
            f"The head's row for class {empty[0]} is zero and gives no direction; if the class was forgotten and "
            "folded before, leave it out of the request."
        )
    return rows


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
