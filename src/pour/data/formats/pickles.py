"""Read pickles of plain data without running code from them."""

from __future__ import annotations

import io
import pickle
import pickletools
import re
from typing import TYPE_CHECKING, Any

import numpy as np

from pour.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["check_memo", "load_plain"]

_NUMBER = re.compile(r"[biu][1248]|f[248]")


class _StoredDtype:
    """Replacement of `numpy.dtype` while unpickling. It accepts only types of numbers."""

    def __init__(self, code: str | bytes, *_: object) -> None:
        self.code = code.decode("ascii") if isinstance(code, bytes) else str(code)
        if not _NUMBER.fullmatch(self.code):
            raise UsageError(f"it contains an array of type {self.code!r}, not of numbers")
        self.order = "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode("ascii") if isinstance(order, bytes) else str(order)

    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.code).newbyteorder("=" if self.order == "|" else self.order)  # type: ignore[arg-type]


class _StoredArray:
    """Replacement of `numpy.ndarray`, so that numpy gets no unchecked state."""

    array: NDArray[Any]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        shape, kind, by_columns, data = state[-4:]
        if not isinstance(kind, _StoredDtype) or not isinstance(data, bytes):
            raise UsageError("it contains an array with an invalid description")
        flat = np.frombuffer(data, kind.dtype())
        self.array = flat.reshape(shape, order="F" if by_columns else "C")


class _ArrayName:
    """Name that replaces `numpy.ndarray` in a pickle. Calling it has no effect."""


def _new_array(*_: object) -> _StoredArray:
    return _StoredArray()


def _encode(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise UsageError(f"it contains bytes written as {encoding!r}, where only latin1 is known")
    return text.encode("latin1")


# Python 3 writes bytes through _codecs.encode. The module of numpy's core has another name in numpy 2.
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy", "ndarray"): _ArrayName,
    ("numpy", "dtype"): _StoredDtype,
    ("_codecs", "encode"): _encode,
}


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise UsageError(f"it asks for {module}.{name}") from None


def check_memo(data: bytes) -> None:
    """Raise UsageError for a memo index beyond the length of the pickle. Unpickling would allocate such a memo."""
    for operation, index, _ in pickletools.genops(data):
        if operation.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(index or 0) >= len(data):
            raise UsageError(f"it asks for a memo of {index} entries")


def load_plain(data: bytes, source: str) -> Any:
    """Unpickle lists, dicts, strings, bytes, numbers and arrays of numbers. Raise UsageError for other objects.

    Args:
        data: Pickle. Strings written by Python 2 are returned as bytes.
        source: Name of the pickle in error messages.

    Raises:
        UsageError: The pickle contains another object, which the message names, or cannot be read.

    Examples:
        >>> load_plain(pickle.dumps({"labels": [1, 2]}, protocol=2), "a batch")
        {'labels': [1, 2]}
        >>> load_plain(pickle.dumps(print), "a batch")
        Traceback (most recent call last):
        pour.errors.UsageError: a batch is refused because it asks for builtins.print; ...
    """
    try:
        check_memo(data)
        return _plain(_PlainUnpickler(io.BytesIO(data), encoding="bytes").load())
    except UsageError as error:
        raise UsageError(
            f"{source} is refused because {error}; only arrays, bytes, strings, numbers, lists and dicts are read."
        ) from None
    except Exception as error:  # a damaged pickle can raise anything
        raise UsageError(
            f"{source} is damaged and cannot be read ({type(error).__name__}: {error}); fetch it again."
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, _StoredArray):
        return value.array
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
