"""The history of a model: one entry per forgetting step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from pour._records import AnyFloat, Json, record
from pour._version import __version__
from pour.models.card import card_of, change_card, json_value

if TYPE_CHECKING:
    from torch import nn

__all__ = ["HistoryEntry", "add_entry", "forgotten_before", "history"]


@record()
class HistoryEntry:
    """One step in a model's history: the forgotten classes, the method, and the digests before and after.

    Example:
        >>> HistoryEntry(method="pour-p", classes=(0,), options={"sizes": (1, 2)}).options
        {'sizes': [1, 2]}
    """

    method: str
    """Name of the method, such as "pour-p"; "fold" for the merging of a projector into the head."""
    classes: tuple[int, ...] = ()
    """Indices of the classes forgotten in this step."""
    class_names: tuple[str, ...] = ()
    """Names of these classes, if the model has class names."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """Options of the method. Values that JSON cannot contain become text."""
    digest_before: str = ""
    """SHA-256 of the state dict before the step."""
    digest_after: str = ""
    """SHA-256 of the state dict after the step."""
    steps: int = 0
    """Number of optimisation steps; 0 for a closed form."""
    seconds: float = 0.0
    """Wall-clock time. Files contain 0, so that the same command writes the same bytes."""
    losses: tuple[AnyFloat, ...] = ()
    """Loss of each logged step."""
    log: tuple[Mapping[str, int | AnyFloat], ...] = ()
    """Other values that the method logged, each with its step, such as learning rates and accuracies."""
    version: str = __version__
    """Version of pour that made the step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", json_value(self.options))


def history(model: nn.Module) -> list[HistoryEntry]:
    """Return the steps by which ``model`` forgot classes, oldest first.

    Example:
        >>> from torch import nn
        >>> history(nn.Linear(4, 3))
        []
    """
    return list(card_of(model).history)


def forgotten_before(model: nn.Module) -> frozenset[int]:
    """Return the classes that earlier steps forgot. Training must not teach them again."""
    return frozenset(index for entry in card_of(model).history for index in entry.classes)


def add_entry(model: nn.Module, entry: HistoryEntry) -> None:
    """Append ``entry`` to the history of ``model``."""
    change_card(model, history=(*card_of(model).history, entry))
