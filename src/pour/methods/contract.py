"""What every unlearning method is, and the registry that finds it by name."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args

from pour.errors import UsageError
from pour.methods.first_call import FirstCall, first_call
from pour.methods.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["Method", "MethodInfo", "get_method", "list_methods", "register"]


@dataclass(kw_only=True)
class Method(ABC):
    """A way to forget: a dataclass of options that is called on a model.

    The model passed to :meth:`__call__` is a copy that may be changed and returned, or replaced.
    """

    name: ClassVar[str]
    """What the registry and the command line call it."""
    paper: ClassVar[str]
    """Where it comes from."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """The data it reads; reading anything else raises."""
    accepts: ClassVar[tuple[Need, ...]] = ()
    """The data that it also reads if the request has them."""
    cost: ClassVar[str] = ""
    """What it costs, in words."""
    pixelwise: ClassVar[bool] = False
    """Whether it also works where labels belong to pixels: on segmentation networks."""
    newer_options: ClassVar[dict[str, Any]] = {}
    """Options that are newer than stored results, each with the value that stands for the method as it was before.

    These values must not change when a default does: stored results without the option have them.
    """

    @abstractmethod
    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Return a model that has forgotten what the request names."""

    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def stored_options(self) -> dict[str, Any]:
        """Return the options by name as stored results contain them.

        An option of ``newer_options`` is left out at the value given there, and contained at any other value. Results
        from before the option therefore count as results of the method as it was.
        """
        effective = self.options()
        for name, value in self.newer_options.items():
            if effective[name] == value:
                del effective[name]
        return effective


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """A line of :func:`list_methods`."""

    name: str
    summary: str
    needs: tuple[Need, ...]
    cost: str
    paper: str
    first_call: FirstCall | None = None
    """Result at the method's defaults on six ordinary networks; None for methods of other packages."""


_METHODS: dict[str, type[Method]] = {}
_GROUP = "pour.methods"
MethodT = TypeVar("MethodT", bound=type[Method])


def register(method: MethodT) -> MethodT:
    """Class decorator: make a method known by its ``name``."""
    if not isinstance(method, type) or not issubclass(method, Method):
        raise UsageError(f"A method is a subclass of pour.methods.Method, not {method!r}.")
    for attribute in ("name", "paper"):
        if not isinstance(getattr(method, attribute, None), str):
            raise UsageError(f"The method {method.__name__} has no {attribute}; set it as a class attribute.")
    if odd := [need for need in method.needs if need not in get_args(Need)]:
        known_needs = ", ".join(get_args(Need))
        raise UsageError(f"The method {method.name} needs {odd[0]!r}, which no request has; it may need {known_needs}.")
    known = _METHODS.get(method.name)
    # Defining the same class again, as in a notebook, replaces it.
    if known is not None and (known.__module__, known.__qualname__) != (method.__module__, method.__qualname__):
        raise UsageError(f"There is already a method {method.name!r}, in {known.__module__}; choose another name.")
    _METHODS[method.name] = method
    return method


@cache
def _load_others() -> None:
    """Register what other packages declare; once, because it reads the metadata of all that is installed."""
    for entry in entry_points(group=_GROUP):
        if entry.name in _METHODS:
            continue
        try:
            register(entry.load())
        except Exception as error:
            # One package that is broken must not cost the methods of all others.
            package = entry.dist.name if entry.dist is not None else "an installed package"
            warnings.warn(
                f"The method {entry.name!r} of {package} is left out: {entry.value} cannot be taken for a method "
                f"({type(error).__name__}: {error}).",
                stacklevel=4,
            )


def _registry() -> dict[str, type[Method]]:
    _load_others()
    return _METHODS


def get_method(name: str) -> type[Method]:
    """The class of the method ``name``."""
    methods = _registry()
    if name not in methods:
        close = difflib.get_close_matches(name, methods, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the methods are {', '.join(sorted(methods))}."
        raise UsageError(f"There is no method {name!r}; {hint}")
    return methods[name]


def list_methods() -> list[MethodInfo]:
    """Return every method: its name, what it does, the data it needs, its cost, its paper and its first call.

    Example:
        >>> [info.needs for info in list_methods() if info.name == "pour-d"]
        [('forget',)]
    """
    return [
        MethodInfo(
            name=name,
            summary=(method.__doc__ or "").strip().splitlines()[0],
            needs=method.needs,
            cost=method.cost,
            paper=method.paper,
            first_call=first_call(name),
        )
        for name, method in sorted(_registry().items())
    ]
