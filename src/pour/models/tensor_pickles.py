"""A pickle module for `torch.load` that rebuilds tensors and plain data. Everything else becomes a stand-in.

`torch.load(pickle_module=...)` requires the names `Unpickler` and `load`.
"""

from __future__ import annotations

import collections
import io
import pickle
from typing import IO, TYPE_CHECKING, Any

from torch import _utils

from pour.data.formats.pickles import check_memo

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Unpickler", "load"]

_TENSOR_MAKERS = ("_rebuild_tensor_v2", "_rebuild_parameter")


class _StandIn:
    """Replacement of an object whose class is not imported. It accepts every operation of a pickle."""

    def __new__(cls, *_: object, **__: object) -> Any:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *_: object, **__: object) -> _StandIn:
        return _StandIn()

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass

    def append(self, item: object) -> None:
        """Accept an item of a list."""

    def extend(self, items: object) -> None:
        """Accept items of a list."""

    def add(self, item: object) -> None:
        """Accept an item of a set."""


class Unpickler(pickle.Unpickler):
    """Unpickler that imports nothing."""

    def __init__(self, file: IO[bytes], **options: Any) -> None:
        data = file.read()
        check_memo(data)
        super().__init__(io.BytesIO(data), **options)

    def find_class(self, module: str, name: str) -> Any:
        """Return the function that rebuilds a tensor, an ordered dictionary, or a new stand-in for anything else."""
        if module == "torch._utils" and name in _TENSOR_MAKERS:
            return _wrapped(getattr(_utils, name))
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        # A pickle can set attributes of a class, so each call returns a new class.
        return type(name.rpartition(".")[2], (_StandIn,), {})


def load(file: IO[bytes], **options: Any) -> Any:
    """Return the object in a pickle."""
    return Unpickler(file, **options).load()


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a new function that calls `function`, because a pickle can set attributes of a function."""

    def rebuild(*args: Any) -> Any:
        return function(*args)

    return rebuild
