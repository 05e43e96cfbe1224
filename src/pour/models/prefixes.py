"""Match the names of a file's tensors to the names of a network. Wrappers put a prefix before the names."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING

from pour.errors import UsageError, warn

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from torch import Tensor

__all__ = ["without_prefix", "without_shared_prefix"]

_COMPILED = "_orig_mod."
_MOST_LISTED = 3
_LOGGER = logging.getLogger(__name__)


def without_prefix(
    state: Mapping[str, Tensor], expected: Mapping[str, Tensor], *, source: str, optional: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return `state` with the names that a network expects.

    Lightning modules, parallel training and compiling put prefixes such as "model.", "module." and "_orig_mod." before
    the names. A prefix in the names of the file is removed, and a prefix that only the network has is added, if the
    result fits the network exactly. Otherwise the prefix with the most matching names is removed, so that the error of
    the caller names the other tensors.

    Args:
        state: Tensors of the file.
        expected: State dict of the network.
        source: File of the tensors, for messages.
        optional: Names of the network whose tensors may be missing or of another shape.

    Raises:
        UsageError: The file contains the network several times, under different prefixes.

    Warns:
        PourWarning: Tensors without the prefix, such as the weights of a loss, are left out.

    Examples:
        >>> import torch
        >>> list(without_prefix({"net.weight": torch.ones(1)}, {"weight": torch.ones(1)}, source="a.ckpt"))
        ['weight']
    """
    if not any(_COMPILED in name for name in expected):
        state = {name.replace(_COMPILED, ""): tensor for name, tensor in state.items()}
    if _fits(state, expected, optional):
        return dict(state)
    counts = _common_prefixes(state, expected)
    fitting = [prefix for prefix in counts if _fits(_taken_off(state, prefix), expected, optional)]
    if len(fitting) > 1:
        listed = " and ".join(repr(prefix) for prefix in sorted(fitting))
        raise UsageError(
            f"{source} contains this network {len(fitting)} times, under the prefixes {listed}; save the state dict of "
            "the network that you want to a separate file."
        )
    if fitting:
        return _named(state, fitting[0], source)
    for prefix in _common_prefixes(expected, state):
        added = {prefix + name: tensor for name, tensor in state.items()}
        if _fits(added, expected, optional):
            _LOGGER.info("%s: added the prefix %r to the names of the tensors", source, prefix)
            return added
    best = max(counts, key=counts.__getitem__, default="")
    if best and counts[best] > sum(name in expected for name in state):
        return _taken_off(state, best)
    return dict(state)


def without_shared_prefix(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `state` without the prefix that all its names share.

    Examples:
        >>> import torch
        >>> list(without_shared_prefix({"net.a.weight": torch.ones(1), "net.bias": torch.ones(1)}))
        ['a.weight', 'bias']
    """
    parents = [name.split(".")[:-1] for name in state]
    parts = itertools.takewhile(lambda part: len(set(part)) == 1, zip(*parents, strict=False))
    return _taken_off(state, "".join(f"{part[0]}." for part in parts))


def _common_prefixes(names: Collection[str], others: Collection[str]) -> Counter[str]:
    """Return the prefixes that turn a name of `others` into one of `names`, and the number of such names."""
    return Counter(
        name[: position + 1]
        for name in names
        for position, letter in enumerate(name)
        if letter == "." and name[position + 1 :] in others
    )


def _taken_off(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have `prefix`, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def _fits(state: Mapping[str, Tensor], expected: Mapping[str, Tensor], optional: Collection[str]) -> bool:
    """Return whether names and shapes fit the network."""
    return state.keys() <= expected.keys() and all(
        name in optional or (name in state and state[name].shape == tensor.shape) for name, tensor in expected.items()
    )


def _named(state: Mapping[str, Tensor], prefix: str, source: str) -> dict[str, Tensor]:
    """Return the tensors under `prefix`. Warn if there are others."""
    others = [name for name in state if not name.startswith(prefix)]
    _LOGGER.info("%s: took the prefix %r off the names of the tensors", source, prefix)
    if others:
        names = ", ".join(others[:_MOST_LISTED]) + (
            f" and {len(others) - _MOST_LISTED} more" if len(others) > _MOST_LISTED else ""
        )
        warn(f"{source}: the tensors under {prefix!r} fit the network, and {names} outside it were left out.")
    return _taken_off(state, prefix)
