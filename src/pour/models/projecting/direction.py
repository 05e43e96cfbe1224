"""The direction of POUR-P: what removes classes from the features, computed from the head alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.clip.zero_shot import TextHead
from pour.models.projecting.projected_head import ProjectedHead, is_masked

if TYPE_CHECKING:
    from collections.abc import Collection

    from pour.models.head import Head

__all__ = [
    "MOST_STRETCH",
    "HeadDirection",
    "RowDirection",
    "check_finite",
    "choose_direction",
    "class_removal",
    "head_removal",
    "stretch",
    "with_earlier",
]

RowDirection = Literal["weights", "centered-weights", "scores", "decisions"]
"""Directions that are computed from the head's parameters, without images."""
HeadDirection = Literal["auto", "weights", "centered-weights", "scores", "decisions"]
"""The same, and ``"auto"``: the choice of :func:`choose_direction`."""
MOST_STRETCH = 4.0
"""Largest :func:`stretch` at which ``decisions`` counts as well conditioned."""

# A copy of a large head in float64 would take twice its memory.
_ROWS_AT_ONCE = 1024


def choose_direction(head: Head, classes: tuple[int, ...], *, earlier: Collection[int] = ()) -> RowDirection:
    """Return ``"decisions"`` if it is well conditioned for this head and these classes, otherwise ``"scores"``.

    Well conditioned means that :func:`stretch` is at most :data:`MOST_STRETCH`. A zero-shot classifier gets
    ``"scores"``, because only an orthogonal projection folds into its image encoder.

    Args:
        head: Head as :func:`~pour.models.head.find_head` returns it.
        classes: Indices of the classes that are removed together.
        earlier: Indices of the classes that earlier requests removed.

    Example:
        >>> from pour.models.head import find_head
        >>> simplex = torch.nn.Linear(4, 3)
        >>> simplex.weight.data = torch.eye(3, 4)
        >>> choose_direction(find_head(simplex), (0,))
        'decisions'
        >>> choose_direction(find_head(torch.nn.Linear(1, 3)), (0,))
        'scores'
    """
    if isinstance(head.layer, TextHead):
        return "scores"
    return "decisions" if stretch(head, classes, earlier=earlier) <= MOST_STRETCH else "scores"


def stretch(head: Head, classes: tuple[int, ...], *, earlier: Collection[int] = ()) -> float:
    r"""Return the largest factor by which ``decisions`` moves features further than ``scores`` does.

    Both map onto the same affine subspace. ``scores`` is the orthogonal projection, and ``decisions`` is
    :math:`z - A^\top (B z - c)`, so the factor is the spectral norm of :math:`A^\top B`, whatever the features. For
    one class it is :math:`|a| |v|`, with v the centred row and a the shift. It is infinite if the head does not admit
    ``decisions``: more classes than features + 1, or dependent rows.
    """
    live = _live_classes(head, classes, earlier)
    try:
        shifts = _shifts(live)
    except _NoDecisionsError:
        return math.inf
    # The k x k matrix R_A R_B^T has the spectral norm of the d x d matrix.
    first, second = (torch.linalg.qr(part.T, mode="r").R for part in (shifts, as_double(live.rows)))
    return float(torch.linalg.matrix_norm(first @ second.T, ord=2))


def class_removal(
    head: Head, classes: tuple[int, ...], direction: HeadDirection, *, earlier: Collection[int] = ()
) -> tuple[Projector | Eraser, RowDirection]:
    """Return the map of POUR-P for a request, and its direction, which ``"auto"`` chooses here.

    Args:
        head: Head, with the projector of earlier requests or without one.
        classes: Indices of the classes that are requested now.
        direction: Direction to remove.
        earlier: Indices of the classes that earlier requests removed.
    """
    together = classes
    if isinstance(head.module, ProjectedHead) and direction in ("auto", "scores", "decisions"):
        # A later request must not move the scores of an earlier one off the mean, so it sets them all.
        together = tuple(sorted({*head.module.forgotten, *classes}))
    if direction == "auto":
        direction = choose_direction(head, together, earlier=earlier)
    return head_removal(head, together, direction, earlier=earlier), direction


def check_finite(head: Head) -> None:
    """Raise UsageError if a weight of the head is NaN or infinite."""
    # A sum needs no second C x d tensor, and any NaN or infinity survives it. A sum can also overflow.
    if torch.isfinite(head.weight.sum()):
        return
    bad = (~torch.isfinite(head.weight).all(dim=1)).nonzero()
    if len(bad):
        raise UsageError(
            f"The head {head.name!r} has NaN or infinite weights (row {int(bad[0])} is the first); "
            "load a sound checkpoint before forgetting."
        )


def head_removal(
    head: Head, classes: tuple[int, ...], direction: RowDirection, *, earlier: Collection[int] = ()
) -> Projector | Eraser:
    """Return the projector or eraser that removes ``classes`` from the features of ``head``.

    All directions except ``weights`` refer to the live classes. A masked class is not live. Neither is a class whose
    row already is the mean of the rows, nor an earlier class whose row is zero.

    Args:
        head: Head as :func:`~pour.models.head.find_head` returns it.
        classes: Indices of the classes that are removed together.
        direction: Direction to remove, see :data:`~pour.models.projecting.forget.Direction`.
        earlier: Indices of the classes that earlier requests removed.

    Raises:
        UsageError: A class has a zero row or the mean row, or the head does not admit the direction.
    """
    if direction == "weights":
        return Projector.from_directions(_precise(_nonzero_rows(head, classes)))
    live = _live_classes(head, classes, earlier)
    if direction == "decisions":
        return Eraser(_shifts(live).to(live.rows), live.rows, -live.level)
    if direction == "centered-weights" or not bool((live.bias != live.bias[0]).any()):
        return Projector.from_directions(live.rows)
    try:
        return Eraser.onto(live.rows, live.level)
    except UsageError as error:
        raise UsageError(
            f"The centred rows of classes {', '.join(map(str, classes))} are linearly dependent, so their scores "
            'cannot all reach the mean; forget fewer classes, or take direction="centered-weights".'
        ) from error


def with_earlier(head: Head, classes: tuple[int, ...], earlier: Collection[int]) -> tuple[int, ...]:
    """Return ``classes`` and those earlier classes whose rows still give a direction, in ascending order.

    A class that was masked, or whose row is zero or the mean row after folding, gives none.

    Args:
        head: Head as :func:`~pour.models.head.find_head` returns it.
        classes: Indices of the classes that are requested now.
        earlier: Indices of the classes that earlier requests removed.
    """
    others = sorted({label for label in earlier if label < head.num_classes} - set(classes))
    if head.bias is not None:
        masked = is_masked(head.bias)
        others = [label for label in others if not bool(masked[label])]
    found = set(classes)
    for label in others:
        try:
            _live_classes(head, (label,), earlier)
        except UsageError:
            continue
        found.add(label)
    return tuple(sorted(found))


class _NoDecisionsError(UsageError):
    """The head does not admit ``decisions``."""


@dataclass(frozen=True)
class _LiveClasses:
    """Parameters of the classes whose scores make up the mean score, the requested classes among them."""

    weight: Tensor
    """Rows, (C', d)."""
    bias: Tensor
    """Biases, (C',)."""
    requested: list[int]
    """Positions of the requested classes among the live classes."""
    rows: Tensor
    """Centred rows of the requested classes, (k, d), in at least single precision."""
    level: Tensor
    """Centred biases of the requested classes, (k,)."""
    noise: float
    """Largest length of a centred row that rounding alone explains."""


def _live_classes(head: Head, classes: tuple[int, ...], earlier: Collection[int]) -> _LiveClasses:
    """Return the live classes. Raise UsageError if a requested class has a zero row or the mean row."""
    requested = list(classes)
    _nonzero_rows(head, classes)
    weight = head.weight
    bias = torch.zeros_like(weight[:, 0]) if head.bias is None else head.bias
    # The bias of a masked class would dominate the mean of the scores.
    live = ~is_masked(bias)
    # A folded request left these classes a constant score, at which no later request aims.
    live[[label for label in earlier if label < len(weight) and not bool(weight[label].any())]] = False
    live[requested] = True

    distances, longest = _distances_to_mean(weight, live)
    # Each weight is rounded to its own dtype, and what it was computed with to at least single precision.
    wide = torch.promote_types(weight.dtype, torch.float32)
    noise = (2 * torch.finfo(weight.dtype).eps + weight.shape[1] * torch.finfo(wide).eps) * longest
    at_mean = distances <= noise
    gone = [label for label in requested if at_mean[label]]
    if gone:
        raise UsageError(
            f"The head's row for class {gone[0]} is the mean of the rows up to rounding and gives no direction; if the "
            "class was forgotten and folded before, leave it out of the request."
        )
    live &= ~at_mean.to(live.device)
    if not bool(live.all()):
        weight, bias = weight[live], bias[live]
    weight, bias = _precise(weight), _precise(bias)
    positions: list[int] = (live.cumsum(dim=0)[requested] - 1).tolist()
    return _LiveClasses(
        weight=weight,
        bias=bias,
        requested=positions,
        rows=weight[positions] - weight.mean(dim=0),
        level=bias[positions] - bias.mean(),
        noise=noise,
    )


def _distances_to_mean(weight: Tensor, live: Tensor) -> tuple[Tensor, float]:
    """Return the distance of every row from the mean of the live rows, and the length of the longest live row."""
    starts = range(0, len(weight), _ROWS_AT_ONCE)
    parts = [slice(start, start + _ROWS_AT_ONCE) for start in starts]
    mean = torch.stack([as_double(weight[part][live[part]]).sum(dim=0) for part in parts]).sum(dim=0) / int(live.sum())
    distances = torch.cat([torch.linalg.vector_norm(as_double(weight[part]) - mean, dim=1) for part in parts])
    lengths = torch.cat([torch.linalg.vector_norm(as_double(weight[part][live[part]]), dim=1) for part in parts])
    return distances, float(lengths.max())


def _shifts(live: _LiveClasses) -> Tensor:
    """Return, per requested class, the smallest feature (k, d) that raises its score and lowers all others alike."""
    classes, width = live.weight.shape
    retained = [label for label in range(classes) if label not in live.requested]
    problem = f'direction="decisions" needs a head of at most {width + 1} classes whose rows are independent'
    if classes - 1 > width:
        raise _NoDecisionsError(f'{problem}, but there are {classes}; take direction="scores".')
    dependent = _NoDecisionsError(f'{problem}, but these are not; take direction="scores".')
    if not retained:
        raise dependent
    centered = as_double(live.weight) - as_double(live.weight).mean(dim=0)
    wanted = torch.zeros(classes, len(live.requested), dtype=torch.float64, device=centered.device)
    wanted[live.requested, range(len(live.requested))] = 1
    wanted[retained] = -1 / len(retained)
    # The centred rows sum to zero, so one of them adds nothing to the others.
    kept = [label for label in range(classes) if label != retained[-1]]
    basis, factor = torch.linalg.qr(centered[kept].T)
    if bool((factor.diagonal().abs() <= live.noise).any()):
        raise dependent
    coordinates = torch.linalg.solve_triangular(factor.T, wanted[kept], upper=False)
    shifts: Tensor = (basis @ coordinates).T
    return shifts


def _nonzero_rows(head: Head, classes: tuple[int, ...]) -> Tensor:
    rows = head.weight[list(classes)]
    empty = [index for index, row in zip(classes, rows, strict=True) if not bool(row.any())]
    if empty:
        raise UsageError(
            f"The head's row for class {empty[0]} is zero and gives no direction; if the class was forgotten and "
            "folded before, leave it out of the request."
        )
    return rows


def _precise(values: Tensor) -> Tensor:
    """Return the values in at least single precision."""
    return values.detach().to(torch.promote_types(values.dtype, torch.float32))
