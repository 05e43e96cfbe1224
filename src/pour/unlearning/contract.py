"""The contract of an unlearning method, and the declaration of its options."""

from __future__ import annotations

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from pour.errors import UsageError
from pour.unlearning.request import Need

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Method", "declaration", "option", "types_of"]

_BOUNDS = {
    "above": ("above {:g}", operator.gt),
    "least": ("at least {:g}", operator.ge),
    "below": ("below {:g}", operator.lt),
    "most": ("at most {:g}", operator.le),
}


def option(default: Any, help: str | None = None, **bounds: float) -> Any:
    """Return a field of a method that users can set.

    A subclass that declares the field again, with another default, inherits help and bounds.

    Args:
        default: Default value.
        help: One or two sentences for `--help`.
        bounds: Limits of the value: `above` and `below` exclude the limit, `least` and `most` include it.

    Examples:
        >>> @dataclass(kw_only=True)
        ... class Halve(Method):
        ...     name = "halve"
        ...     share: float = option(0.5, "Share of the weights.", above=0, most=1)
        ...     def __call__(self, model, request, run):
        ...         return model
        >>> Halve(share=2.0)
        Traceback (most recent call last):
        pour.errors.UsageError: share must be above 0 and at most 1, but is 2.0.
    """
    declared = {"help": help, "bounds": bounds}
    return dataclasses.field(default=default, metadata={name: value for name, value in declared.items() if value})


def declaration(method: type[Method], name: str) -> dict[str, Any]:
    """Return the `help` and `bounds` that a method and its parents declare for an option.

    Examples:
        >>> from pour.methods.pour_p import PourP
        >>> declaration(PourP, "forgotten_logit")["help"][:26]
        'Score of a forgotten class'
    """
    fields = (getattr(parent, "__dataclass_fields__", {}).get(name) for parent in reversed(method.__mro__))
    return {key: value for field in fields if field is not None for key, value in field.metadata.items()}


@cache
def types_of(method: type[Method]) -> dict[str, Any]:
    """Return the type of each option, or nothing if a type of the class cannot be resolved."""
    try:
        return get_type_hints(method)
    except NameError:
        return {}


@dataclass(kw_only=True)
class Method(ABC):
    """A way to forget: a dataclass of options that is called on a model.

    The model passed to `__call__` is a copy that may be changed and returned, or replaced.
    """

    name: ClassVar[str]
    """Name in the registry and on the command line."""
    paper: ClassVar[str]
    """Publication that introduced the method."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """Data that the method reads; reading other data raises."""
    accepts: ClassVar[tuple[Need, ...]] = ()
    """Data that the method also reads if the request contains them."""
    cost: ClassVar[str] = ""
    """Cost in words, such as the number of epochs."""
    pixelwise: ClassVar[bool] = False
    """Whether the method also works if labels belong to pixels, on segmentation networks."""
    several_heads: ClassVar[bool] = False
    """Whether the method also works on networks that average the scores of several heads."""
    newer_options: ClassVar[dict[str, Any]] = {}
    """Options that are newer than stored results, each with the value at which the method works as before.

    These values must not change with a default, because stored results without the option have these values.
    """

    def __post_init__(self) -> None:
        self.check_options()

    @abstractmethod
    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Return a model that has forgotten the classes of the request."""

    def options(self) -> dict[str, Any]:
        """Return the options by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def stored_options(self) -> dict[str, Any]:
        """Return the options by name as stored results contain them.

        An option of `newer_options` is left out if it has the value listed there. So results that are older than the
        option count as results with that value.
        """
        effective = self.options()
        for name, value in self.newer_options.items():
            if effective[name] == value:
                del effective[name]
        return effective

    def check_options(self) -> None:
        """Raise UsageError if an option is no choice of its type, is not finite or is outside of its bounds."""
        kind = type(self)
        for name, value in self.options().items():
            choices = _choices(types_of(kind).get(name))
            if choices and value is not None and value not in choices:
                words = " or ".join(filter(None, [", ".join(choices[:-1]), choices[-1]]))
                raise UsageError(f"{name} must be {words}, but is {value!r}.")
            if isinstance(value, float) and not math.isfinite(value):
                raise UsageError(f"{name} of {self.name} must be a finite number, but is {value}.")
            bounds = declaration(kind, name).get("bounds", {})
            if value is not None and not all(_BOUNDS[bound][1](value, limit) for bound, limit in bounds.items()):
                words = " and ".join(_BOUNDS[bound][0].format(limit) for bound, limit in bounds.items())
                raise UsageError(f"{name} must be {words}, but is {value}.")


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the values of a type that is a Literal, or a Literal or None."""
    return next((get_args(part) for part in (kind, *get_args(kind)) if get_origin(part) is Literal), ())
