"""Resolve names and indices of classes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from pour.errors import UsageError, nearest_name

__all__ = ["ClassRequest", "resolve_classes"]

ClassRequest = Sequence[int | str] | int | str
"""One class or several, each an index or a name."""


def resolve_classes(
    classes: ClassRequest,
    *,
    num_classes: int,
    class_names: Sequence[str] | None = None,
    already: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return the indices of `classes`, in the same order.

    A string is looked up among the names, without regard to case if no two names differ only in their case. It is an
    index only if it is no name, so that the class called "7" of a digits model is never mistaken. At least two classes
    must remain, because a simplex with all but one vertex removed is projected to the origin.

    Args:
        classes: Indices or names. A single class need not be in a list.
        num_classes: Number of classes that the head scores.
        class_names: Names in the order of the scores, if they are known.
        already: Classes forgotten by earlier requests, which do not count as remaining.

    Examples:
        >>> resolve_classes(["cat", 0], num_classes=4, class_names=["plane", "car", "cat", "dog"])
        (2, 0)
    """
    if class_names is not None and len(class_names) != num_classes:
        raise UsageError(
            f"There are {len(class_names)} class names for {num_classes} classes; pass one name per class."
        )
    # Arrays and tensors count as lists, although a single entry could be an index too.
    classes = getattr(classes, "tolist", lambda: classes)()
    listed: list[int | str] = [classes] if isinstance(classes, str | SupportsIndex) else list(classes)
    if not listed:
        raise UsageError("The list of classes to forget is empty; name at least one class.")
    indices = [_index_of(item, num_classes, class_names) for item in listed]
    repeated = sorted({index for index in indices if indices.count(index) > 1})
    if repeated:
        raise UsageError(f"Class {_say(repeated[0], class_names)} is listed more than once; name each class once.")
    remaining = num_classes - len(set(indices) | set(already))
    if remaining < 2:
        left = "no class" if remaining <= 0 else "one class"
        before = f" after the {len(set(already))} forgotten earlier" if already else ""
        raise UsageError(
            f"Forgetting {len(indices)} of {num_classes} classes{before} would leave {left}; "
            "keep at least two classes (features of a single remaining class become zero too)."
        )
    return tuple(indices)


def _say(index: int, class_names: Sequence[str] | None) -> str:
    return f"{index} ({class_names[index]!r})" if class_names else str(index)


def _index_of(item: object, num_classes: int, class_names: Sequence[str] | None) -> int:
    if isinstance(item, bool):
        raise UsageError(f"{item} is not a class; pass an index from 0 to {num_classes - 1} or a name.")
    if isinstance(item, str):
        return _index_of_name(item, num_classes, class_names)
    try:
        index = operator.index(item)  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{item!r} is not a class; pass an index from 0 to {num_classes - 1} or a name.") from None
    if not 0 <= index < num_classes:
        raise UsageError(f"Class {index} is out of range; the model has classes 0 to {num_classes - 1}.")
    return index


def _index_of_name(name: str, num_classes: int, class_names: Sequence[str] | None) -> int:
    names = list(class_names or ())
    if name in names:
        if names.count(name) > 1:
            raise UsageError(f"The name {name!r} belongs to {names.count(name)} classes; pass the index instead.")
        return names.index(name)
    if name.isascii() and name.isdigit():
        return _index_of(int(name), num_classes, class_names)
    if not names:
        raise UsageError(
            f"The model does not know its class names, so {name!r} cannot be found; pass an index from 0 to "
            f"{num_classes - 1}, or attach the names with pour.models.set_class_names(model, names)."
        )
    by_lower = {full.lower(): full for full in names}
    if name.lower() in by_lower and len(by_lower) == len(names):
        return names.index(by_lower[name.lower()])
    some = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
    raise UsageError(f"There is no class called {name!r}; {nearest_name(name, names, f'the classes are {some}.')}")
