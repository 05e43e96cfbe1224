"""The registry of unlearning methods: find a method by its name."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from functools import cache
from typing import TypeVar, get_args

from pour._plug_ins import load_plug_ins
from pour.errors import UsageError, nearest_name
from pour.unlearning.contract import Method
from pour.unlearning.first_call import FirstCall, first_call
from pour.unlearning.request import Need

__all__ = ["MethodInfo", "get_method", "list_methods", "register"]

_METHODS: dict[str, type[Method]] = {}
_PACKAGE = "pour.methods"
MethodT = TypeVar("MethodT", bound=type[Method])


@dataclass(frozen=True, kw_only=True)
class MethodInfo:
    """Description of a method in `list_methods`."""

    name: str
    """Name in the registry and on the command line."""
    summary: str
    """First line of the docstring."""
    needs: tuple[Need, ...]
    """Data that the method reads."""
    cost: str
    """Cost in words."""
    paper: str
    """Publication that introduced the method."""
    first_call: FirstCall | None = None
    """Result at the method's defaults on six ordinary networks; None for methods of other packages."""


def register(method: MethodT) -> MethodT:
    """Class decorator: register a method under its `name`. Raise UsageError if the class is no valid method."""
    if not isinstance(method, type) or not issubclass(method, Method):
        raise UsageError(f"A method is a subclass of pour.unlearning.Method, not {method!r}.")
    for attribute in ("name", "paper"):
        if not isinstance(getattr(method, attribute, None), str):
            raise UsageError(f"The method {method.__name__} has no {attribute}; set it as a class attribute.")
    if unknown := [need for need in method.needs if need not in get_args(Need)]:
        needs = ", ".join(get_args(Need))
        raise UsageError(f"The method {method.name} needs {unknown[0]!r}, which no request has; it may need {needs}.")
    other = _METHODS.get(method.name, method)
    # A second definition of the same class, as in a notebook, replaces the first.
    if (other.__module__, other.__qualname__) != (method.__module__, method.__qualname__):
        raise UsageError(f"There is already a method {method.name!r}, in {other.__module__}; choose another name.")
    _METHODS[method.name] = method
    return method


@cache
def _built_in() -> dict[str, str]:
    """Return the module of each method of this package. The file `pour_d.py` contains the method `pour-d`."""
    package = importlib.import_module(_PACKAGE)
    names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    return {name.replace("_", "-"): f"{_PACKAGE}.{name}" for name in names}


def _all_methods() -> dict[str, type[Method]]:
    for module in _built_in().values():
        importlib.import_module(module)
    load_plug_ins("method", register)
    return _METHODS


def get_method(name: str) -> type[Method]:
    """Return the class of the method `name`, and import only its module. Raise UsageError for an unknown name."""
    if name not in _METHODS and name in _built_in():
        importlib.import_module(_built_in()[name])
    if name in _METHODS:
        return _METHODS[name]
    methods = _all_methods()
    if name not in methods:
        hint = nearest_name(name, methods, f"the methods are {', '.join(sorted(methods))}.")
        raise UsageError(f"There is no method {name!r}; {hint}")
    return methods[name]


def list_methods() -> list[MethodInfo]:
    """Return every method: its name, what it does, the data it needs, its cost, its paper and its first call.

    Examples:
        >>> [info.needs for info in list_methods() if info.name == "pour-d"]
        [('forget',)]
    """
    return [
        MethodInfo(
            name=name,
            summary=(method.__doc__ or "").strip().partition("\n")[0],
            needs=method.needs,
            cost=method.cost,
            paper=method.paper,
            first_call=first_call(name),
        )
        for name, method in sorted(_all_methods().items())
    ]
