"""Carrying out a row's method in a grid that goes on when it diverges or refuses."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pour.errors import DivergenceError, PourError
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method
from pour.unlearning.unlearn import carry_out, make_method

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import nn

    from pour.bench.experiments import Row
    from pour.training.run import Run
    from pour.unlearning.request import ForgetRequest

__all__ = ["Attempt", "attempt", "slower"]

# What tuned learning rates are multiplied with, one after the other, while the method diverges.
_FACTORS = (1 / 3, 1 / 9)


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """A row's model, or why there is none."""

    model: nn.Module | None
    failed: str | None = None
    """The sentence of the divergence guard or of the method."""
    warnings: tuple[str, ...] = ()
    """What the method said."""
    rate_factor: float = 1.0
    """What the learning rates were multiplied with, where the method diverged at the row's own."""


def attempt(row: Row, model: nn.Module, request: ForgetRequest, run: Run) -> Attempt:
    """What a row's method makes of ``model``.

    A tuned row that diverges is run again at a third of its learning rates, and then at a ninth: its options were
    chosen on another class, and whoever uses the method sees it diverge without looking at any test image. The common
    setting has one learning rate for all and stands as it is.
    """
    if row.method is None:
        return Attempt(model=model)
    failed = ""
    for factor, options in islice(slower(row.method, row.options), None if row.setting == "tuned" else 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            try:
                result = carry_out(model, request, make_method(row.method, **options), run)
            except DivergenceError as error:
                failed = str(error)
                continue
            except PourError as error:
                return Attempt(model=None, failed=str(error), rate_factor=factor)
        said = tuple(str(entry.message) for entry in caught if str(entry.message).startswith(row.method))
        return Attempt(model=result, warnings=said, rate_factor=factor)
    return Attempt(model=None, failed=failed, rate_factor=factor)


def slower(method: str, options: Mapping[str, Any]) -> Iterator[tuple[float, dict[str, Any]]]:
    """The options of a method as they are, then with smaller learning rates, each with the factor of the rates.

    A method without learning rates, or one that takes them from the data, has nothing to make smaller.

    Example:
        >>> [(round(factor, 2), chosen["lr"]) for factor, chosen in slower("delete", {"lr": 0.09})]
        [(1.0, 0.09), (0.33, 0.03), (0.11, 0.01)]
    """
    yield 1.0, dict(options)
    kind = get_method(method)
    known = make_method(method, **options).options()
    rates = {name: known[name] for name in kind.rate_options} if issubclass(kind, IterativeMethod) else {}
    if rates and None not in rates.values():
        for factor in _FACTORS:
            yield factor, {**options, **{name: float(f"{rate * factor:.6g}") for name, rate in rates.items()}}
