"""Find the score tensor in the output of a classifier."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["output_tensors", "scores_of"]

_SCORE_KEYS = ("logits", "out")


def output_tensors(output: object) -> list[Tensor]:
    """Return every tensor that could be the scores: the tensor itself, `.logits`, `["out"]`, or all tensors."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, Mapping):
        fields: Mapping[str, object] = output
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        fields = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    elif isinstance(output, list | tuple):
        names: Iterable[Any] = getattr(output, "_fields", range(len(output)))
        fields = dict(zip(names, output, strict=True))
    else:
        logits = getattr(output, "logits", None)
        return [logits] if isinstance(logits, Tensor) else []
    for key in _SCORE_KEYS:
        if isinstance(scores := fields.get(key), Tensor):
            return [scores]
    return [tensor for value in fields.values() for tensor in output_tensors(value)]


def scores_of(output: object, *, num_classes: int | None = None) -> Tensor:
    """Return the class scores: `.logits` or `["out"]` if present, otherwise the first tensor with as many scores.

    Args:
        output: Output of the model.
        num_classes: Number of scores, which distinguishes them from embeddings. By default the first tensor is taken.

    Raises:
        UsageError: The output contains no tensor.
    """
    tensors = output_tensors(output)
    if not tensors:
        problem = f"The model returned a {type(output).__name__} without a score tensor"
        raise UsageError(f"{problem}; return the scores, or an object with .logits.")
    fitting = [tensor for tensor in tensors if tensor.ndim > 1 and num_classes in (tensor.shape[1], tensor.shape[-1])]
    return (fitting or tensors)[0]
