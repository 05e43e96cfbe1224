"""The history of a model: one entry per forgetting step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from pour._records import AnyFloat, Json, record
from pour._version import __version__
from pour.models.card import card_of, change_card, json_value

if TYPE_CHECKING:
    from rich.console import RenderableType
    from torch import nn

__all__ = ["History", "HistoryEntry", "add_entry", "forgotten_before", "history"]


@record()
class HistoryEntry:
    """One step in a model's history: the forgotten classes, the method, and the digests before and after.

    Examples:
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
    digest_before: str = field(default="", repr=False)
    """SHA-256 of the state dict before the step."""
    digest_after: str = field(default="", repr=False)
    """SHA-256 of the state dict after the step."""
    steps: int = 0
    """Number of optimisation steps; 0 for a closed form."""
    seconds: float = 0.0
    """Wall-clock time. Files contain 0, so that the same command writes the same bytes."""
    losses: tuple[AnyFloat, ...] = field(default=(), repr=False)
    """Loss of each logged step."""
    log: tuple[Mapping[str, int | AnyFloat], ...] = field(default=(), repr=False)
    """Other values that the method logged, each with its step, such as learning rates and accuracies."""
    notes: tuple[str, ...] = ()
    """Warnings about the model and the data that did not prevent the step."""
    version: str = field(default=__version__, repr=False)
    """Version of pour that made the step."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", json_value(self.options))


class History(list[HistoryEntry]):
    """Steps by which a model forgot classes, oldest first. `print` shows a table."""

    def __rich__(self) -> RenderableType:
        from pour._terminal import TerminalTable

        if not self:
            return "Nothing was forgotten."
        columns = ["method", "forgotten", "options", "steps", "loss", "weights after"]
        table = TerminalTable(columns, right=["steps"], prose=["forgotten", "options"])
        for entry in self:
            options = ", ".join(f"{name}={value}" for name, value in entry.options.items() if value is not None)
            names = ", ".join(map(str, entry.class_names or entry.classes))
            losses = f"{entry.losses[0]:.3g} to {entry.losses[-1]:.3g}" if entry.losses else ""
            table.add_row(entry.method, names, options, str(entry.steps or ""), losses, entry.digest_after[:12])
        return table

    def __str__(self) -> str:
        from pour._terminal import as_text

        return as_text(self.__rich__())


def history(model: nn.Module) -> History:
    """Return the steps by which `model` forgot classes, oldest first. `print` shows them as a table.

    Examples:
        >>> from torch import nn
        >>> history(nn.Linear(4, 3))
        []
    """
    return History(card_of(model).history)


def forgotten_before(model: nn.Module) -> frozenset[int]:
    """Return the classes that earlier steps forgot. Training must not use their images."""
    return frozenset(index for entry in card_of(model).history for index in entry.classes)


def add_entry(model: nn.Module, entry: HistoryEntry) -> None:
    """Append `entry` to the history of `model`."""
    change_card(model, history=(*card_of(model).history, entry))
