"""Compute the data of a page's pictures together with the audit, and store them in its report."""

from __future__ import annotations

import base64
import importlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pour._records import Json, record
from pour.errors import UsageError
from pour.models.card import json_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import nn

    from pour.auditing.features import Seen
    from pour.auditing.report import AuditReport
    from pour.training.run import Run

__all__ = ["Pictures", "Subject", "compute_pictures", "pack", "register_computation", "unpack"]

# Modules of `pour.report`, which register the pictures of the tasks of this package.
_BUILT_IN = {
    "classify": "pour.report.page.gallery",
    "match": "pour.report.page.gallery",
    "segment": "pour.report.page.overlays",
}
_COMPUTATIONS: dict[str, Callable[[Subject], dict[str, Any]]] = {}
_LARGEST_ARRAY = 64 * 2**20


@record()
class Pictures:
    """Data of the pictures of an audit. `pour.report` draws them without any model."""

    task: str
    """Name of the task that computed the pictures."""
    data: Mapping[str, Json] = field(default_factory=dict)
    """Data by picture, such as `map` for the interactive map of features."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", json_value(self.data))


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Models, audits and samples from which pictures are computed."""

    models: Mapping[str, nn.Module]
    """Models by name: `original`, `retrained` if there is such a model, and unlearned models."""
    reports: Mapping[str, AuditReport]
    """Audits of the unlearned models by the same names. The first is the audit of the page."""
    samples: Any
    """Test samples of the task."""
    run: Run
    head: str | None = None
    """Name of the models' head, if pour cannot find it."""

    @property
    def name(self) -> str:
        """Name of the unlearned model of the page."""
        return next(iter(self.reports))

    @property
    def report(self) -> AuditReport:
        """Audit of the page."""
        return self.reports[self.name]

    @property
    def seen(self) -> dict[str, Seen]:
        """Features and scores of the models on the test samples, by name, from memory of the audits."""
        if not self.report.seen:
            raise UsageError(
                f"The report {self.name!r} was read from a file, which has no features; audit the model again."
            )
        roles = {"original": self.report, self.name: self.report, **self.reports, "retrained": self.report}
        return {
            name: report.seen["unlearned" if name in self.reports else name]
            for name, report in roles.items()
            if name in self.models
        }


def register_computation(task: str, compute: Callable[[Subject], dict[str, Any]]) -> None:
    """Set the function that computes the data of a task's pictures. See `pour.report.pictures`."""
    _COMPUTATIONS[task] = compute


def compute_pictures(task: str, subject: Subject) -> Pictures:
    """Return the data of the pictures of a task. A task without a registered function has none."""
    load_built_in(task)
    compute = _COMPUTATIONS.get(task)
    return Pictures(task=task, data={} if compute is None else compute(subject))


def load_built_in(task: str) -> None:
    """Import the module that registers the pictures of a task of this package."""
    if task in _BUILT_IN:
        importlib.import_module(_BUILT_IN[task])


def pack(values: NDArray[Any]) -> dict[str, Any]:
    """Return an array as JSON: its type, its shape, and its compressed bytes in base64.

    Examples:
        >>> unpack(pack(np.array([[1, 2]], np.uint8)))
        array([[1, 2]], dtype=uint8)
    """
    content = base64.b64encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode("ascii")
    return {"type": values.dtype.str, "shape": list(values.shape), "content": content}


def unpack(packed: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array that `pack` encoded. Raise ValueError for anything else."""
    kind, shape = np.dtype(packed["type"]), tuple(map(int, packed["shape"]))
    size = kind.itemsize * int(np.prod(shape, dtype=object))
    if kind.kind not in "uif" or not 0 <= size <= _LARGEST_ARRAY:
        raise ValueError(f"An array of {kind} and shape {shape} cannot be a picture.")
    # A damaged or hostile text may expand to more bytes than its shape declares.
    content = zlib.decompressobj().decompress(base64.b64decode(packed["content"], validate=True), size + 1)
    if len(content) != size:
        raise ValueError(f"An array of shape {shape} has {len(content)} bytes instead of {size}.")
    return np.frombuffer(content, kind).reshape(shape).copy()
