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


def scores_of(output: object) -> Tensor:
    """The class scores: ``.logits`` or ``["out"]`` where there is one, else the first tensor returned."""
    tensors = output_tensors(output)
    if not tensors:
        raise UsageError(
            f"The model returned a {type(output).__name__} without a score tensor; "
            "return the scores, or an object with .logits."
        )
    return tensors[0]
