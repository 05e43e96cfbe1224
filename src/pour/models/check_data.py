"""Check that data have the classes and channels that a model was trained for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pour.errors import UsageError, warn
from pour.models import card as cards

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

__all__ = ["check_data"]


def check_data(model: nn.Module, *, channels: int | None, names: Sequence[str]) -> None:
    """Raise UsageError if the card of `model` records other channels or other classes.

    Args:
        model: Any classifier. A model without a card passes.
        channels: Number of channels of the images, if known.
        names: Classes of the data. Names that are only numbers are not compared.

    Warns:
        PourWarning: Some classes have other names than in the model.
    """
    architecture = cards.architecture(model)
    options = {} if architecture is None else architecture.options
    if None not in (options.get("in_channels"), channels) and options["in_channels"] != channels:
        expected = options["in_channels"]
        problem = f"The model takes images of {expected} channel{'s' * (expected != 1)}, and these have {channels}"
        raise UsageError(f"{problem}; pass images of shape (N, {expected}, H, W) as in the training.")
    if options.get("num_classes", len(names)) != len(names):
        problem = f"The model has scores for {options['num_classes']} classes, and the data have {len(names)}"
        raise UsageError(f"{problem}; pass the data that it was trained on.")
    model_names = cards.names_of_scores(model, len(names))
    numbers = tuple(str(index) for index in range(len(names)))
    if model_names is None or numbers in (model_names, tuple(names)) or model_names == tuple(names):
        return
    first = next(index for index in range(len(names)) if model_names[index] != names[index])
    difference = f"Class {first} is {model_names[first]!r} in the model and {names[first]!r} in the data"
    if set(model_names) == set(names):
        raise UsageError(f"{difference}: the same classes in another order; bring the labels into the model's order.")
    warn(f"{difference}; make sure that their orders agree.")
