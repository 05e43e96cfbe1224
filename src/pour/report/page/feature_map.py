"""The map of features that a reader can move over: points, pictures, and answers before and after."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pour.data.draws import stratified_rows
from pour.errors import UsageError
from pour.report.page.sprites import encode_png, sheet_of, thumbnails

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pour.auditing.report import AuditedData
    from pour.data.dataset import ImageArray
    from pour.report.figures.feature_map import EmbeddingData

__all__ = ["Embedding"]

_POINTS = 3000
# At least a quarter of the points are for the forgotten classes, which are what the map is about.
_FORGOTTEN_SHARE = 4
_PICTURE_BYTES = 3 * 2**20
_GRID = 1000


@dataclass(frozen=True, eq=False, kw_only=True)
class Embedding:
    """Points of the same images under several models, in one shared frame.

    Example:
        >>> corners = np.array([[0.0, 0.0], [1.0, 1.0]])
        >>> Embedding(points={"original": corners}, labels=np.array([0, 1]), predictions={"original": np.array([0, 1])})
        Embedding(2 images, models original)
    """

    points: Mapping[str, NDArray[np.floating[Any]]]
    """By model, (n, 2); the first is where the page starts on the left, the second on the right."""
    labels: NDArray[np.integer[Any]]
    """True classes, (n,)."""
    predictions: Mapping[str, NDArray[np.integer[Any]]]
    """What each model answers, (n,)."""
    images: ImageArray | None = None
    """(n, height, width, 1 or 3), uint8."""
    numbers: NDArray[np.integer[Any]] | None = None
    """What to call each image, (n,); by default 0 to n - 1."""

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
            if points.shape != (n, 2) or not np.isfinite(points).all():
                raise UsageError(f"The points of {name!r} must be {n} finite pairs, but have shape {points.shape}.")
            if self.predictions[name].shape != (n,):
                raise UsageError(f"The predictions of {name!r} must be {n} class indices, one to a point.")
        if self.images is not None and (len(self.images) != n or self.images.ndim != 4):
            raise UsageError(
                f"The embedding's images have shape {self.images.shape}; expected {n} of them, (n, h, w, c)."
            )

    @classmethod
    def of(
        cls,
        data: EmbeddingData,
        predictions: Mapping[str, NDArray[np.integer[Any]]],
        images: ImageArray | None = None,
    ) -> Embedding:
        """The map that :func:`~pour.report.figures.feature_map.embedding_data` made, with answers and pictures.

        Args:
            data: where each image lies.
            predictions: by model, of all images that were given to ``embedding_data``.
            images: all of them.
        """
        return cls(
            points=data.points,
            labels=data.labels,
            predictions={name: answers[data.rows] for name, answers in predictions.items()},
            images=None if images is None else images[data.rows],
            numbers=data.rows,
        )

    def __repr__(self) -> str:
        return f"Embedding({len(self.labels)} images, models {', '.join(self.points)})"

    def payload(self, data: AuditedData) -> dict[str, Any]:
        """What the page's script reads: at most 3,000 points on a grid, their answers and one sheet of pictures."""
        every = [self.labels, *self.predictions.values()]
        lowest, highest = min(int(part.min()) for part in every), max(int(part.max()) for part in every)
        if lowest < 0 or highest >= len(data.classes):
            raise UsageError(
                f"The embedding has classes {lowest} to {highest}, but the audit is of {len(data.classes)} classes."
            )
        rows = self._drawn_rows(data.forgotten)
        placed = self._placed(rows)
        payload: dict[str, Any] = {
            "models": list(self.points),
            "classes": list(data.classes),
            "forgotten": list(data.forgotten),
            "labels": self.labels[rows].tolist(),
            "points": {name: points.T.tolist() for name, points in placed.items()},
            "predictions": {name: self.predictions[name][rows].tolist() for name in self.points},
            "rows": (rows if self.numbers is None else self.numbers[rows]).tolist(),
            "grid": _GRID,
            "sheet": None,
            "note": "",
        }
        notes = []
        if len(rows) < len(self.labels):
            notes.append(
                f"{len(rows):,} of {len(self.labels):,} points are drawn, the forgotten classes at least as "
                "densely as the others."
            )
        if self.images is not None:
            payload["sheet"], pictured = self._sheet(self.images, rows, data.forgotten)
            if pictured < len(rows):
                notes.append(f"{pictured:,} of them have a picture, to keep the page small.")
        payload["note"] = " ".join(notes)
        return payload

    def _drawn_rows(self, forgotten: tuple[int, ...]) -> NDArray[np.int64]:
        if len(self.labels) <= _POINTS:
            return np.arange(len(self.labels))
        gone = np.isin(self.labels, forgotten)
        sides = [np.flatnonzero(gone), np.flatnonzero(~gone)]
        share = _POINTS * len(sides[0]) // len(self.labels)
        first = min(len(sides[0]), max(_POINTS // _FORGOTTEN_SHARE, share, _POINTS - len(sides[1])))
        counts = (first, _POINTS - first)
        labels = self.labels.astype(np.int64)
        return np.sort(
            np.concatenate(
                [side[stratified_rows(labels[side], count, 0)] for side, count in zip(sides, counts, strict=True)]
            )
        )

    def _placed(self, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """Whole numbers from 0 to the grid's size in one frame for all models, y upwards."""
        everything = np.concatenate([points[rows] for points in self.points.values()]).astype(np.float64)
        low = everything.min(axis=0)
        # One scale for both axes: distances in a map mean something.
        span = float((everything.max(axis=0) - low).max()) or 1.0
        margin = (1 - (everything.max(axis=0) - low) / span) / 2
        return {
            name: np.rint(_GRID * ((points[rows] - low) / span + margin)).astype(np.int64)
            for name, points in self.points.items()
        }

    def _sheet(
        self, images: ImageArray, rows: NDArray[np.int64], forgotten: tuple[int, ...]
    ) -> tuple[dict[str, Any], int]:
        """One PNG of the pictures that fit into the page, those of forgotten classes first."""
        small = thumbnails(images[rows[:1]])
        fitting = max(1, _PICTURE_BYTES // small[0].size)
        gone = np.isin(self.labels[rows], forgotten)
        order = np.argsort(~gone, kind="stable")
        chosen = order[:fitting]
        if int(gone.sum()) < fitting < len(rows):
            others = np.flatnonzero(~gone)
            spread = stratified_rows(self.labels[rows][others].astype(np.int64), fitting - int(gone.sum()), 0)
            chosen = np.concatenate([np.flatnonzero(gone), others[spread]])
        chosen = np.sort(chosen)
        sheet, columns = sheet_of(thumbnails(images[rows[chosen]]))
        place = np.full(len(rows), -1)
        place[chosen] = np.arange(len(chosen))
        described = {
            "source": f"data:image/png;base64,{base64.b64encode(encode_png(sheet)).decode('ascii')}",
            "columns": columns,
            "height": small.shape[1],
            "width": small.shape[2],
            "place": place.tolist(),
        }
        return described, len(chosen)
