"""The map of POUR-P: it removes classes from the features, and is computed from the head's parameters alone.

With w_c and b_c the rows and biases of the head, v_u = w_u - mean(w) and beta_u = b_u - mean(b) of a forgotten class:

    weights            P z = z - Q^T Q z                     Q an orthonormal basis of the rows w_u (the paper)
    centered-weights   P z = z - Q^T Q z                     Q an orthonormal basis of the rows v_u
    scores             E(z) = z - V^+ (V z + beta)           the nearest z at which the class scores the mean
    decisions          E(z) = z - A^T (V z + beta)           A: the smallest shifts that change no retained decision
"""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.clip.zero_shot import TextHead
from pour.models.projecting.live_classes import LiveClasses, live_classes, nonzero_rows, precise
from pour.models.projecting.projected_head import ProjectedHead, is_masked

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pour.models.head import Head

__all__ = [
    "MOST_STRETCH",
    "HeadDirection",
    "RowDirection",
    "check_finite",
    "choose_direction",
    "class_removal",
    "class_removals",
    "head_removal",
    "stretch",
    "with_earlier",
]

RowDirection = Literal["weights", "centered-weights", "scores", "decisions"]
"""Directions that are computed from the head's parameters, without images."""
HeadDirection = Literal["auto", "weights", "centered-weights", "scores", "decisions"]
"""A direction from the head's parameters, or `"auto"` for the choice of `choose_direction`."""
MOST_STRETCH = 4.0
"""Largest `stretch` at which `decisions` counts as well conditioned."""


def choose_direction(head: Head, classes: tuple[int, ...], *, earlier: Collection[int] = ()) -> RowDirection:
    """Return `"decisions"` if it is well conditioned for this head and these classes, otherwise `"scores"`.

    Well conditioned means that `stretch` is at most `MOST_STRETCH`. A zero-shot classifier gets
    `"scores"`, because only an orthogonal projection folds into its image encoder.

    Args:
        head: Head as `find_head` returns it.
        classes: Indices of the classes that are removed together.
        earlier: Indices of the classes that earlier requests removed.

    Examples:
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
    r"""Return the largest factor by which `decisions` moves features further than `scores` does.

    Both map onto the same affine subspace. `scores` is the orthogonal projection, and `decisions` is
    $z - A^\top (B z - c)$. So the factor is the spectral norm of $A^\top B$, which does not depend on the features.
    For one class it is $|a| |v|$, with v the centred row and a the shift. It is infinite if `decisions` does not exist
    for the head: more classes than features + 1, or dependent rows.
    """
    live = live_classes(head, classes, earlier)
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
    """Return the map of POUR-P for a request, and its direction, which `"auto"` chooses here.

    Args:
        head: Head, with the projector of earlier requests or without one.
        classes: Indices of the classes that are requested now.
        direction: Direction to remove.
        earlier: Indices of the classes that earlier requests removed.

    Raises:
        UsageError: The head has a projector of one of the classes, or does not admit the direction.
    """
    together = classes
    again = set(classes).intersection(head.module.forgotten if isinstance(head.module, ProjectedHead) else ())
    if again:
        problem = f"Class {min(again)} is forgotten already by the projector in front of the head"
        raise UsageError(f"{problem}; leave it out of the request.")
    if isinstance(head.module, ProjectedHead) and direction in ("auto", "scores", "decisions"):
        # A later request must not move earlier classes' scores away from the mean, so its map sets the scores of all.
        together = tuple(sorted({*head.module.forgotten, *classes}))
    if direction == "auto":
        direction = choose_direction(head, together, earlier=earlier)
    return head_removal(head, together, direction, earlier=earlier), direction


def class_removals(
    heads: Sequence[Head], classes: tuple[int, ...], direction: HeadDirection, *, earlier: Collection[int] = ()
) -> tuple[list[Projector | Eraser], RowDirection]:
    """Return the map of POUR-P for each head of a model, and the direction, which is the same for all heads."""
    removals = [class_removal(head, classes, direction, earlier=earlier) for head in heads]
    taken = {name for _, name in removals}
    if len(taken) > 1:
        return class_removals(heads, classes, "scores", earlier=earlier)
    return [removal for removal, _ in removals], taken.pop()


def check_finite(head: Head, *, earlier: Collection[int] = ()) -> None:
    """Raise UsageError if a weight, or the bias of a class not forgotten earlier, is not a finite number."""
    if head.weight.is_meta:
        problem = f"The weights of the head {head.name!r} have no values (they are on the meta device)"
        raise UsageError(f"{problem}; load the checkpoint into the model before forgetting.")
    # A sum needs no second C x d tensor, and any NaN or infinity makes it not finite. A sum can also overflow, so
    # then the rows are checked.
    if not torch.isfinite(head.weight.sum()):
        bad = (~torch.isfinite(head.weight).all(dim=1)).nonzero()
        if len(bad):
            problem = f"The head {head.name!r} has NaN or infinite weights (row {int(bad[0])} is the first)"
            raise UsageError(f"{problem}; load a checkpoint without such values before forgetting.")
    broken = [] if head.bias is None else (~torch.isfinite(head.bias)).nonzero().flatten().tolist()
    for label in broken:
        if label not in earlier:
            problem = f"The head {head.name!r} has the bias {float(head.bias[label])} for class {label}"  # type: ignore[index]
            raise UsageError(f"{problem}; load a checkpoint with finite biases before forgetting.")


def head_removal(
    head: Head, classes: tuple[int, ...], direction: RowDirection, *, earlier: Collection[int] = ()
) -> Projector | Eraser:
    """Return the projector or eraser that removes `classes` from the features of `head`.

    All directions except `weights` refer to the live classes. Not live are masked classes, classes whose row is the
    mean of the rows, and earlier classes whose row is zero.

    Args:
        head: Head as `find_head` returns it.
        classes: Indices of the classes that are removed together.
        direction: Direction to remove, see `Direction`.
        earlier: Indices of the classes that earlier requests removed.

    Raises:
        UsageError: A class has a zero row or the mean row, or the head does not admit the direction.
    """
    if direction == "weights":
        return Projector.from_directions(precise(nonzero_rows(head, classes)))
    live = live_classes(head, classes, earlier)
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
    """Return `classes` and the earlier classes whose rows still have a direction, in ascending order.

    A masked class has none, and neither has a class whose row is zero or the mean row after folding.

    Args:
        head: Head as `find_head` returns it.
        classes: Indices of the classes that are requested now.
        earlier: Indices of the classes that earlier requests removed.
    """
    others = sorted({label for label in earlier if label < head.num_classes} - set(classes))
    if head.bias is not None:
        masked = is_masked(head.bias)
        others = [label for label in others if not bool(masked[label])]
    together = set(classes)
    for label in others:
        with contextlib.suppress(UsageError):
            live_classes(head, (label,), earlier)
            together.add(label)
    return tuple(sorted(together))


class _NoDecisionsError(UsageError):
    """The head does not admit `decisions`."""


def _shifts(live: LiveClasses) -> Tensor:
    """Return for each requested class the smallest shift of features that raises its score and lowers the others alike.

    The shifts are rows (k, d).
    """
    classes, width = live.weight.shape
    retained = [label for label in range(classes) if label not in live.requested]
    problem = f'direction="decisions" needs a head of at most {width + 1} classes whose rows are independent'
    if classes - 1 > width:
        raise _NoDecisionsError(f'{problem}, but there are {classes}; take direction="scores".')
    dependent = _NoDecisionsError(f'{problem}, but these are not; take direction="scores".')
    if not retained:
        raise dependent
    centered = as_double(live.weight) - as_double(live.weight).mean(dim=0)
    changes = torch.zeros(classes, len(live.requested), dtype=torch.float64, device=centered.device)
    changes[live.requested, range(len(live.requested))] = 1
    changes[retained] = -1 / len(retained)
    # The centred rows sum to zero, so one row depends on the others and is left out.
    independent = [label for label in range(classes) if label != retained[-1]]
    basis, factor = torch.linalg.qr(centered[independent].T)
    if bool((factor.diagonal().abs() <= live.noise).any()):
        raise dependent
    coordinates = torch.linalg.solve_triangular(factor.T, changes[independent], upper=False)
    shifts: Tensor = (basis @ coordinates).T
    return shifts
