"""The interactive map of features: points, pictures, and the answers of each model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pour._records import convert, record
from pour.errors import UsageError
from pour.report.figures.feature_map import spread_rows
from pour.report.page.sprites import encode_png, sheet_of, thumbnails

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pour.auditing.report import AuditedData
    from pour.data.dataset import ImageArray

__all__ = ["Embedding", "check_payload"]

_POINTS = 3000
# Smallest share of forgotten images among the points.
_FORGOTTEN_SHARE = 0.25
_PICTURE_BYTES = 3 * 2**20
_GRID = 1000
_PNG = "data:image/png;base64,"


@record()
class _Sheet:
    """One PNG with all pictures."""

    source: str
    columns: int
    height: int
    width: int
    place: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.source.startswith(_PNG):
            raise UsageError("A sheet of pictures must be a PNG inside the report.")


@record()
class _Payload:
    """Input of the page's script."""

    models: tuple[str, ...]
    classes: tuple[str, ...]
    forgotten: tuple[int, ...]
    labels: tuple[int, ...]
    points: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    predictions: Mapping[str, tuple[int, ...]]
    rows: tuple[int, ...]
    grid: int
    sheet: _Sheet | None
    note: str


def check_payload(payload: object) -> None:
    """Raise UsageError if the map of a report, such as one from a changed file, cannot be shown."""
    convert(_Payload, payload, "The report's map of features")


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedding:
    """Points of the same images under several models in one map.

    Examples:
        >>> corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        >>> Embedding(points={"original": corners}, labels=np.array([0, 1]), predictions={"original": np.array([0, 1])})
        Embedding(2 images, models original)
    """

    points: Mapping[str, NDArray[np.floating[Any]]]
    """Points by model, each (n, 2). The page shows the first model on the left and the second on the right."""
    labels: NDArray[np.integer[Any]]
    """True classes, (n,)."""
    predictions: Mapping[str, NDArray[np.integer[Any]]]
    """Answers by model, each (n,)."""
    images: ImageArray | None = None
    """Images in uint8, (n, height, width, 1 or 3)."""
    numbers: NDArray[np.integer[Any]] | None = None
    """Numbers of the images, (n,); by default 0 to n - 1."""

    def __post_init__(self) -> None:
        n = len(self.labels)
        if not self.points or not n:
            raise UsageError("An embedding needs at least one model and one point.")
        if set(self.predictions) != set(self.points):
            raise UsageError(
                f"The embedding has points of {', '.join(self.points)}, but predictions of "
                f"{', '.join(self.predictions) or 'no model'}; give both for the same models."
            )
        for name, points in self.points.items():
            if points.shape != (n, 2) or not np.isfinite(points).all() or self.predictions[name].shape != (n,):
                raise UsageError(f"{name!r} needs {n} finite pairs as points and {n} class indices as predictions.")
        if self.images is not None and (len(self.images) != n or self.images.ndim != 4):
            raise UsageError(
                f"The embedding's images have shape {self.images.shape}; expected {n} of them, (n, h, w, c)."
            )

    def __repr__(self) -> str:
        return f"Embedding({len(self.labels)} images, models {', '.join(self.points)})"

    def payload(self, data: AuditedData) -> dict[str, Any]:
        """Return the input of the page's script: at most 3,000 points on a grid, answers and a sheet of pictures."""
        every = np.concatenate([self.labels, *self.predictions.values()])
        if every.min() < 0 or every.max() >= len(data.classes):
            raise UsageError(
                f"The embedding has classes {every.min()} to {every.max()}, but the audit is of {len(data.classes)} "
                "classes."
            )
        labels = self.labels.astype(np.int64)
        is_forgotten = np.isin(labels, data.forgotten)
        rows = spread_rows(labels, is_forgotten, _POINTS, share=_FORGOTTEN_SHARE)
        notes, sheet = [], None
        if len(rows) < len(labels):
            notes.append(
                f"{len(rows):,} of {len(labels):,} points are drawn, the forgotten classes at least as "
                "densely as the others."
            )
        if self.images is not None:
            sheet, pictured = _sheet(self.images, rows, labels[rows], is_forgotten[rows])
            if pictured < len(rows):
                notes.append(f"{pictured:,} of them have a picture, to keep the page small.")
        return {
            "models": list(self.points),
            "classes": list(data.classes),
            "forgotten": list(data.forgotten),
            "labels": labels[rows].tolist(),
            "points": {name: points.T.tolist() for name, points in self._on_grid(rows).items()},
            "predictions": {name: self.predictions[name][rows].tolist() for name in self.points},
            "rows": (rows if self.numbers is None else self.numbers[rows]).tolist(),
            "grid": _GRID,
            "sheet": sheet,
            "note": " ".join(notes),
        }

    def _on_grid(self, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Return the points as whole numbers from 0 to the grid's size, in one frame for all models, y upwards."""
        every = np.concatenate([points[rows] for points in self.points.values()]).astype(np.float64)
        low = every.min(axis=0)
        # Both axes have the same scale, because distances in the map have a meaning.
        span = float((every.max(axis=0) - low).max()) or 1.0
        margin = (1 - (every.max(axis=0) - low) / span) / 2
        return {
            name: np.rint(_GRID * ((points[rows] - low) / span + margin)).astype(np.int64)
            for name, points in self.points.items()
        }


def _sheet(
    images: ImageArray, rows: NDArray[np.int64], labels: NDArray[np.int64], is_forgotten: NDArray[np.bool_]
) -> tuple[dict[str, Any], int]:
    """Return one PNG of as many pictures as the page can contain, forgotten classes first, and their number."""
    _, height, width, _ = (first := thumbnails(images[rows[:1]])).shape
    limit = max(1, _PICTURE_BYTES // first.size)
    if int(is_forgotten.sum()) < limit:
        places = spread_rows(labels, is_forgotten, limit, share=1.0)
    else:
        places = np.flatnonzero(is_forgotten)[:limit]
    sheet, columns = sheet_of(thumbnails(images[rows[places]]))
    place = np.full(len(rows), -1)
    place[places] = np.arange(len(places))
    source = f"{_PNG}{base64.b64encode(encode_png(sheet)).decode('ascii')}"
    described = {"source": source, "columns": columns, "height": height, "width": width, "place": place.tolist()}
    return described, len(places)
