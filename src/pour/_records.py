"""Decode and encode the files that pour reads: one frozen dataclass per kind of file, its record.

The module belongs to no room, because the metric catalogue is a file too and `metrics` is above `data`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import reprlib
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, dataclass_transform

from pour._io import existing_file
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import ConfigDict, TypeAdapter, ValidationError

__all__ = ["AnyFloat", "Json", "Option", "Scalar", "convert", "decode", "encode", "read", "record", "schema"]

T = TypeVar("T")

Scalar = str | int | float | bool | None
"""A JSON value without parts."""
Option = Scalar | tuple[Scalar, ...]
"""Value of an option: a scalar or a list of scalars."""

_CONFIG: ConfigDict = {"strict": True, "extra": "forbid", "allow_inf_nan": False}
_ADAPTERS: dict[object, TypeAdapter[Any]] = {}
_LARGEST_FILE = 256 * 2**20
_NEWEST = "__record_version__"
_DERIVED = "__record_derived__"
_COMPLETE = "__record_complete__"


class _AnyFloatSchema:
    """Annotation that describes any float to pydantic, without importing it here."""

    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: object) -> dict[str, Any]:
        return {"type": "float", "strict": True, "allow_inf_nan": True}


class _JsonSchema:
    """Annotation that describes any JSON value to pydantic, without importing it here."""

    @staticmethod
    def __get_pydantic_core_schema__(source: object, handler: Any) -> Any:
        from pydantic import JsonValue

        return handler.generate_schema(JsonValue)


AnyFloat = Annotated[float, _AnyFloatSchema()]
"""Type of a field that may be NaN or infinite. Other float fields refuse both."""
Json = Annotated[Any, _JsonSchema()]
"""Type of a field that may be any JSON value, with finite numbers. Use it only if the keys are those of others."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field,))
def record(
    *, version: str | None = None, derived: Sequence[str] = (), complete: bool = False, kw_only: bool = True
) -> Callable[[type[T]], type[T]]:
    """Class decorator: make the class a record, which is a frozen dataclass.

    `decode` checks the types of its fields and refuses unknown keys. Every dataclass inside a record is a record
    too. Ruff leaves the imports of its annotations at run time.

    Args:
        version: Field with the version of the format. The default of the field is the newest version.
        derived: Properties that `encode` adds for other programs. `decode` ignores them.
        complete: Refuse a file that lacks a field, also if the field has a default.
        kw_only: Whether the fields must be named when a record is made in Python.

    Examples:
        >>> @record(version="schema")
        ... class Point:
        ...     x: float
        ...     schema: int = 1
        >>> decode(Point, '{"x": 2.5, "schema": 1}', "point.json")
        Point(x=2.5, schema=1)
        >>> decode(Point, '{"x": "2.5", "schema": 1}', "point.json")
        Traceback (most recent call last):
        pour.errors.UsageError: point.json has the value '2.5' for x, which must be a valid number; correct it.
    """

    def mark(kind: type[T]) -> type[T]:
        kind.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
        setattr(kind, _NEWEST, None if version is None else (version, getattr(kind, version)))
        setattr(kind, _DERIVED, tuple(derived))
        setattr(kind, _COMPLETE, complete)
        if "__dataclass_fields__" in vars(kind):
            return kind  # a task, which another package wrote as a dataclass
        return dataclasses.dataclass(kind, frozen=True, kw_only=kw_only)

    return mark


def read(kind: type[T], path: str | os.PathLike[str]) -> T:
    """Return the record in a file. Raise UsageError if the file is missing, unreadable or of another kind."""
    source = existing_file(path)
    try:
        if source.stat().st_size > _LARGEST_FILE:
            raise UsageError(f"{source} is larger than {_LARGEST_FILE // 2**20} MiB; give another file.")
        content = source.read_bytes()
    except OSError as error:
        raise UsageError(f"{source} cannot be read ({error.strerror or error}); check its permissions.") from error
    return decode(kind, content, source)


def decode(kind: type[T], content: str | bytes, path: str | os.PathLike[str]) -> T:
    """Return the record that `content` encodes. Raise UsageError with the file and the dotted key otherwise.

    Args:
        kind: A `record`, or a type made of records such as `dict[str, Cell]`.
        content: JSON, or TOML if the path ends in `.toml`.
        path: File that the errors name.
    """
    text = content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass")
    return _decode_json(kind, _toml_as_json(text, path) if Path(path).suffix == ".toml" else text, path)


def convert(kind: type[T], value: object, source: str) -> T:
    """Return the record that lists, dictionaries and scalars describe. Errors name `source` as the file.

    Examples:
        >>> convert(dict[str, int], {"epochs": "two"}, "The recipe")
        Traceback (most recent call last):
        pour.errors.UsageError: The recipe has the value 'two' for epochs, which must be a valid integer; correct it.
    """
    return _decode_json(kind, json.dumps(value).encode(), source)


def _decode_json(kind: type[T], text: bytes, path: str | os.PathLike[str]) -> T:
    from pydantic import ValidationError
    from pydantic_core import to_json

    data = _parse(text, path)
    if isinstance(data, dict) and hasattr(kind, _NEWEST):
        _check_version(kind, data, path)
        _check_complete(kind, data, path)
    ignored = [key for key in getattr(kind, _DERIVED, ()) if isinstance(data, dict) and key in data]
    if ignored:
        text = to_json({key: value for key, value in data.items() if key not in ignored}, inf_nan_mode="constants")
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise UsageError(_sentence(error, data, path)) from error
    except PourError as error:
        raise UsageError(f"{path} cannot be used: {error}") from error


def encode(value: object, *, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return a record, or lists and dictionaries of records, as JSON.

    Raises:
        PourError: `decode` would refuse the record, for example because of a number that is not finite.
    """
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, default=_fields_of)
    if hasattr(value, _NEWEST):
        try:
            decode(type(value), text, type(value).__name__)
        except UsageError as error:
            raise PourError(f"The {type(value).__name__} cannot be stored: {error}") from error
    return text


def _fields_of(value: Any) -> Any:
    """Return what JSON contains for a record or a path."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    names = [field.name for field in dataclasses.fields(value)]
    return {name: getattr(value, name) for name in (*names, *getattr(value, _DERIVED, ()))}


def schema(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a record, for documentation and for completion in editors."""
    return _adapter(kind).json_schema()


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    from pydantic import TypeAdapter

    if kind not in _ADAPTERS:
        # pydantic refuses a second configuration for a dataclass, which brings its own.
        config = None if dataclasses.is_dataclass(kind) else _CONFIG
        _ADAPTERS[kind] = TypeAdapter(kind, config=config)
    return _ADAPTERS[kind]


def _toml_as_json(content: bytes, path: str | os.PathLike[str]) -> bytes:
    """Return TOML as JSON: in strict mode, lists of Python are no tuples, and lists of JSON are."""
    try:
        return json.dumps(tomllib.loads(content.decode("utf-8"))).encode()
    except ValueError as error:
        raise UsageError(f"{path} is not valid TOML: {error}; correct the file.") from error
    except TypeError as error:
        raise UsageError(f"{path} contains a date or a time; write it as a string.") from error
    except RecursionError as error:
        raise UsageError(f"{path} has too many nested lists or tables; correct the file.") from error


def _parse(text: bytes, path: str | os.PathLike[str]) -> Any:
    from pydantic_core import from_json

    try:
        return from_json(text)
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}; it may be cut short or of another kind.") from error


def _check_complete(kind: type[Any], data: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise UsageError if the file of a complete record lacks a field."""
    absent = [field.name for field in dataclasses.fields(kind) if getattr(kind, _COMPLETE) and field.name not in data]
    if absent:
        raise UsageError(f"{path} lacks the key {absent[0]}; it may be cut short or of another kind.")


def _check_version(kind: type[Any], data: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Raise UsageError for another version of the format, whose keys may be unknown here."""
    field = getattr(kind, _NEWEST)
    if field is None:
        return
    name, newest = field
    version = data.get(name)
    if not isinstance(version, int):
        raise UsageError(f"{path} has no {name}, which is a number; give a file that pour wrote.")
    if version > newest:
        raise UsageError(f"{path} has {name} {version}, newer than this pour reads ({newest}); update pour-unlearning.")
    if version < newest:
        raise UsageError(f"{path} has {name} {version}, older than this pour reads ({newest}); make the file again.")


def _sentence(error: ValidationError, data: object, path: str | os.PathLike[str]) -> str:
    """Describe the first wrong value of `data`."""
    problems = error.errors(include_url=False, include_context=False)
    places = [_place(problem["loc"], data) for problem in problems]
    # A value of a union has one problem for each type of the union. The type that fails deepest inside fits best.
    place = max((other for other in places if other[: len(places[0])] == places[0]), key=len)
    first, *others = [problem for problem, other in zip(problems, places, strict=True) if other == place]
    key = ".".join(place)
    if first["type"] in {"missing", "missing_argument", "missing_keyword_only_argument"}:
        name = ".".join((*place, _printable(first["loc"][-1])))
        return f"{path} lacks the key {name}; it may be cut short or of another kind."
    if first["type"] in {"unexpected_keyword_argument", "extra_forbidden"}:
        return f"{path} has the unknown key {key}; remove it or correct its name."
    expected = [problem["msg"].removeprefix("Input should be ") for problem in (first, *others)]
    if first["type"] in {"value_error", "assertion_error"}:
        return f"{path} cannot be used{f', see {key}' if key else ''}: {expected[0].partition(', ')[2]}"
    value = reprlib.repr(first["input"]) + (f" for {key}" if key else "")
    return f"{path} has the value {value}, which must be {' or '.join(expected)}; correct it."


def _place(location: Sequence[str | int], data: object) -> tuple[str, ...]:
    """Return the keys of a location. pydantic puts the names of types between them, which are no keys."""
    place = []
    for part in location:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        ):
            place.append(_printable(part))
            data = data[part]  # type: ignore[index]
    return tuple(place)


def _printable(part: str | int) -> str:
    text = str(part)
    return text if text.isprintable() else repr(text)
