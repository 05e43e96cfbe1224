"""Check that data have the classes and channels that a model was made for."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from pour.errors import UsageError
from pour.models import card as cards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["check_data", "names_of_scores"]


def names_of_scores(model: nn.Module, num_classes: int) -> tuple[str, ...] | None:
    """The model's class names, or None where there is not one for each of its ``num_classes`` scores.

    A transformers configuration may still list the classes of an earlier head.
    """
    names = cards.class_names(model)
    return names if names is not None and len(names) == num_classes else None


def check_data(model: nn.Module, *, channels: int | None, names: Sequence[str]) -> None:
    """Raise where ``model`` says of itself that it is for other images or other classes.

    Args:
        model: any classifier; one that says nothing of itself is taken as it is.
        channels: of the images, where that is known.
        names: the classes of the data; names that are mere numbers are not compared.
    """
    card = cards.architecture(model)
    wanted = None if card is None else card.options.get("in_channels")
    if None not in (wanted, channels) and wanted != channels:
        raise UsageError(
            f"The model takes images of {wanted} channel{'s' * (wanted != 1)}, and these have {channels}; give the "
            "data that it was trained on."
        )
    scores = None if card is None else card.options.get("num_classes")
    if scores is not None and scores != len(names):
        raise UsageError(
            f"The model has scores for {scores} classes, and the data have {len(names)}; give the data that it was "
            "trained on."
        )
    known = cards.class_names(model)
    numbers = tuple(str(index) for index in range(len(names)))
    if known is None or len(known) != len(names) or numbers in (known, tuple(names)) or known == tuple(names):
        return
    odd = next(index for index in range(len(names)) if known[index] != names[index])
    told = f"Class {odd} is {known[odd]!r} to the model and {names[odd]!r} in the data"
    if set(known) == set(names):
        raise UsageError(f"{told}: the same classes in another order; bring the labels into the model's order.")
    warnings.warn(f"{told}; make sure that their orders agree.", stacklevel=3)
