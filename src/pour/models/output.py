"""The score tensor inside whatever a classifier returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from torch import Tensor

from pour.errors import UsageError

__all__ = ["output_tensors", "scores_of"]

_SCORE_KEYS = ("logits", "out")


def output_tensors(output: object) -> list[Tensor]:
    """Every tensor that could be the scores: the tensor itself, ``.logits``, ``["out"]``, or all that are there."""
    if isinstance(output, Tensor):
        return [output]
    if dataclasses.is_dataclass(output) and not isinstance(output, type | Mapping):
        output = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
    if isinstance(output, Mapping):
        for key in _SCORE_KEYS:
            if isinstance(output.get(key), Tensor):
                return [output[key]]
        return [tensor for value in output.values() for tensor in output_tensors(value)]
    if isinstance(output, list | tuple):
        fields = getattr(output, "_fields", ())
        for key in _SCORE_KEYS:
            if key in fields and isinstance(getattr(output, key), Tensor):
                return [getattr(output, key)]
        return [tensor for value in output for tensor in output_tensors(value)]
    logits = getattr(output, "logits", None)
    return [logits] if isinstance(logits, Tensor) else []


def scores_of(output: object, *, num_classes: int | None = None) -> Tensor:
    """The class scores: ``.logits`` or ``["out"]`` where there is one, else the first tensor with as many scores.

    Args:
        output: What the model returned.
        num_classes: The number of scores, to tell them from embeddings; the first tensor is taken if left out.
    """
    tensors = output_tensors(output)
    if not tensors:
        raise UsageError(
            f"The model returned a {type(output).__name__} without a score tensor; "
            "return the scores, or an object with .logits."
        )
    fitting = [tensor for tensor in tensors if tensor.ndim > 1 and num_classes in (tensor.shape[1], tensor.shape[-1])]
    return (fitting or tensors)[0]
