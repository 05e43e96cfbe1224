"""The card of a model: its history, class names, architecture and the name of its head."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pour._records import Json, record
from pour.errors import UsageError
from pour.models.networks.normalize import NormalizedModel
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from pour.models.history import HistoryEntry

__all__ = [
    "Architecture",
    "ModelCard",
    "Training",
    "architecture",
    "card_of",
    "change_card",
    "checked_names",
    "class_names",
    "copy_card",
    "json_value",
    "names_of_scores",
    "remove_cards",
    "set_architecture",
    "set_class_names",
]

# A plain attribute of the model: copy.deepcopy copies it, and state dicts do not contain it.
_ATTRIBUTE = "_pour_card"


@record(kw_only=False)
class Architecture:
    """Name and options with which `pour.models.build_model` builds the same network again."""

    name: str
    options: Mapping[str, Json] = field(default_factory=dict)
    from_user: bool = False
    """Whether the network is defined in the user's own code. pour builds nothing from the name of such a network."""


@record()
class Training:
    """Record of the training of a model."""

    dataset: str
    """Name of the dataset."""
    left_out: tuple[int, ...] = ()
    """Indices of the classes whose samples were left out."""
    accuracy: Mapping[str, float] = field(default_factory=dict)
    """Accuracy by split."""
    class_accuracy: tuple[float | None, ...] = ()
    """Accuracy on the test samples of each class; None for a class without samples."""


@dataclass(frozen=True)
class ModelCard:
    """Facts about a model that its weights do not contain."""

    history: tuple[HistoryEntry, ...] = ()
    class_names: tuple[str, ...] | None = None
    architecture: Architecture | None = None
    head: str | None = None
    """Dotted name of the head, or names of several heads joined by commas. None if `find_head` must find the head."""
    training: Training | None = None
    """Record of the training, if pour trained the model."""


def card_of(model: nn.Module) -> ModelCard:
    """Return the card of `model`, which is empty for a model that pour has not changed.

    For a `NormalizedModel` without a card, return the history and the head of the network inside.
    """
    model = unwrap(model)
    card = model.__dict__.get(_ATTRIBUTE)
    if isinstance(card, ModelCard):
        return card
    if not isinstance(model, NormalizedModel):
        return ModelCard()
    inside = card_of(model.model)
    head = None if inside.head is None else f"model.{inside.head}"
    return dataclasses.replace(inside, architecture=None, head=head)


def change_card(model: nn.Module, **changes: Any) -> None:
    """Replace some fields of the card of `model`."""
    # nn.Module.__setattr__ would refuse a name that a submodule has.
    object.__setattr__(unwrap(model), _ATTRIBUTE, dataclasses.replace(card_of(model), **changes))


def copy_card(source: nn.Module, target: nn.Module) -> None:
    """Write the card of `source` to `target`."""
    change_card(target, **vars(card_of(source)))


def remove_cards(model: nn.Module) -> None:
    """Remove the cards of a model and of its modules, so that the model contains no data of pour."""
    for module in model.modules():
        module.__dict__.pop(_ATTRIBUTE, None)


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """Return the names of the classes from the card or from a transformers configuration, or None.

    For a `NormalizedModel` without names, return the names of the network inside.
    """
    model = unwrap(model)
    names = card_of(model).class_names
    if names is not None:
        return names
    if isinstance(model, NormalizedModel):
        return class_names(model.model)
    labels = getattr(getattr(model, "config", None), "id2label", None)
    if not isinstance(labels, dict) or sorted(labels) != list(range(len(labels))):
        return None
    listed = tuple(str(labels[index]) for index in range(len(labels)))
    is_placeholder = listed == tuple(f"LABEL_{index}" for index in range(len(listed)))
    return None if is_placeholder or not listed else listed


def names_of_scores(model: nn.Module, num_classes: int) -> tuple[str, ...] | None:
    """Return the class names of `model`, or None if there is not one name per score.

    A transformers configuration may still list the classes of an earlier head.
    """
    names = class_names(model)
    return names if names is not None and len(names) == num_classes else None


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return class names as a tuple. Raise UsageError if they are not a list of strings."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError("Class names must be a list of strings, one per class.")
    return tuple(names)


def set_class_names(model: nn.Module, names: Sequence[str] | None) -> None:
    """Write the names of the classes, in the order of the scores, to the card of `model`."""
    change_card(model, class_names=None if names is None else checked_names(names))


def architecture(model: nn.Module) -> Architecture | None:
    """Return the name and options that rebuild `model`, or None if its card has none."""
    return card_of(model).architecture


def set_architecture(model: nn.Module, name: str, options: Mapping[str, Any], *, from_user: bool = False) -> None:
    """Write the name and options for `pour.models.build_model` to the card of `model`."""
    change_card(model, architecture=Architecture(name, json_value(options), from_user))


def json_value(value: Any) -> Any:
    """Return `value` as a JSON value. Other objects and non-finite numbers become text."""
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [json_value(item) for item in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
