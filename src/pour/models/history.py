"""What a model has been through: a record for each thing forgotten, its class names, and how to build it again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pour._version import __version__
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "Architecture",
    "Record",
    "add_record",
    "architecture",
    "checked_names",
    "class_names",
    "copy_card",
    "head_name",
    "history",
    "set_architecture",
    "set_card",
    "set_class_names",
    "set_head_name",
]

# A plain attribute of the model: deepcopy takes it along, and state dicts do not see it.
_ATTRIBUTE = "_pour_card"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One step in a model's history: what was forgotten, how, and the weights before and after."""

    method: str
    """Name of the method, such as "pour-p"; "fold" for the merging of a projector into the head."""
    classes: tuple[int, ...] = ()
    """Indices of the classes forgotten in this step."""
    class_names: tuple[str, ...] = ()
    """Their names, where the model knows them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The method's options; values that JSON can hold."""
    digest_before: str = ""
    """SHA-256 of the state dict before the step."""
    digest_after: str = ""
    """SHA-256 of the state dict after it."""
    steps: int = 0
    """Optimisation steps taken; 0 for a closed form."""
    seconds: float = 0.0
    """Wall-clock time; 0 in a model read from a file, which holds only what the same command repeats."""
    losses: tuple[float, ...] = ()
    """Loss values along the way."""
    log: tuple[Mapping[str, float], ...] = ()
    """What else the method told along the way, each with its step: a rate it found, accuracies it looked at."""
    version: str = __version__
    """Version of pour that did it."""

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that JSON can hold."""
        return {**dataclasses.asdict(self), "options": _plain(self.options)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """Read what :meth:`to_dict` wrote; unknown entries of later versions are left out.

        Example:
            >>> record = Record(method="pour-p", classes=(0,), options={"head": "fc"})
            >>> Record.from_dict(record.to_dict()) == record
            True
        """
        known = {entry.name for entry in dataclasses.fields(cls)}
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items() if name in known
        }
        if "method" not in values:
            raise UsageError("A history record has no 'method'; the file was not written by pour.")
        return cls(**values)


@dataclass(frozen=True)
class Architecture:
    """A name for :func:`pour.models.build_model` and the options to build the same network again."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Card:
    history: list[Record] = field(default_factory=list)
    class_names: tuple[str, ...] | None = None
    architecture: Architecture | None = None
    head: str | None = None


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside ``torch.compile``'s or a parallel wrapper."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"A model is needed (nn.Module), not a {type(model).__name__}; pour.load opens a file of one.")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError("The model is a TorchScript module, which cannot be changed; give the nn.Module it came from.")
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    while True:
        inner = model.module if isinstance(model, parallel) else model._modules.get("_orig_mod")
        if inner is None:
            return model
        model = inner


def _card(model: nn.Module) -> _Card:
    """What the model knows about itself, to read; one that nobody told anything stays without."""
    card = unwrap(model).__dict__.get(_ATTRIBUTE)
    return card if isinstance(card, _Card) else _Card()


def _own_card(model: nn.Module) -> _Card:
    """The same to write on."""
    card = _card(model)
    object.__setattr__(unwrap(model), _ATTRIBUTE, card)
    return card


def history(model: nn.Module) -> list[Record]:
    """What ``model`` has forgotten, oldest first: method, options, losses, steps, seconds, digests.

    Example:
        >>> history(nn.Linear(4, 3))
        []
    """
    return list(_card(model).history)


def forgotten_before(model: nn.Module) -> frozenset[int]:
    """The classes that earlier requests took from ``model``, and that nothing should teach it again."""
    return frozenset(index for record in _card(model).history for index in record.classes)


def add_record(model: nn.Module, record: Record) -> None:
    """Append ``record`` to the model's history."""
    _own_card(model).history.append(record)


def checked_names(names: Sequence[str]) -> tuple[str, ...]:
    """Class names as a tuple, or a sentence where they are no list of strings."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError("Class names must be a list of strings, one per class.")
    return tuple(names)


def set_class_names(model: nn.Module, names: Sequence[str] | None) -> None:
    """Tell ``model`` the names of its classes, in the order of its scores."""
    _own_card(model).class_names = None if names is None else checked_names(names)


def class_names(model: nn.Module) -> tuple[str, ...] | None:
    """The names of the classes: as set, else as a transformers model's configuration lists them, else None."""
    names = _card(model).class_names
    if names is not None:
        return names
    labels = getattr(getattr(unwrap(model), "config", None), "id2label", None)
    if not isinstance(labels, dict) or sorted(labels) != list(range(len(labels))):
        return None
    found = tuple(str(labels[index]) for index in range(len(labels)))
    placeholder = found == tuple(f"LABEL_{index}" for index in range(len(found)))
    return None if placeholder or not found else found


def set_architecture(model: nn.Module, name: str, options: Mapping[str, Any]) -> None:
    """Tell ``model`` under which name and options :func:`pour.models.build_model` makes it."""
    _own_card(model).architecture = Architecture(name, _plain(dict(options)))


def architecture(model: nn.Module) -> Architecture | None:
    """The name and options that rebuild ``model``, or None if nobody said."""
    return _card(model).architecture


def set_head_name(model: nn.Module, name: str) -> None:
    """Tell ``model`` which of its layers is the head, where it is not found by itself."""
    _own_card(model).head = name


def head_name(model: nn.Module) -> str | None:
    """The dotted name of the head as it was told, or None."""
    return _card(model).head


def set_card(
    model: nn.Module,
    *,
    history: Sequence[Record],
    class_names: Sequence[str] | None,
    architecture: Architecture | None,
    head: str | None = None,
) -> None:
    """Replace everything that ``model`` knows about itself; without ``head`` it keeps what it was told of that."""
    names = None if class_names is None else tuple(class_names)
    card = _Card(history=list(history), class_names=names, architecture=architecture, head=head or _card(model).head)
    object.__setattr__(unwrap(model), _ATTRIBUTE, card)


def copy_card(source: nn.Module, target: nn.Module) -> None:
    """Give ``target`` the history, class names, architecture and head's name of ``source``."""
    card = _card(source)
    object.__setattr__(unwrap(target), _ATTRIBUTE, dataclasses.replace(card, history=list(card.history)))
