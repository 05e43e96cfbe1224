"""t-SNE of the features of several models in one map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pour.data.draws import stratified_rows
from pour.errors import UsageError
from pour.geometry.procrustes import procrustes
from pour.report.figures.style import FULL_WIDTH, ClassNames, Theme, drawing, finish, in_order, listed, plain_text
from pour.report.figures.tsne import EmbeddingMethod, fixed_map, joint_map, resolve_method

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from pour.report.figures.style import Style

__all__ = ["EmbeddingData", "EmbeddingMethod", "draw_embedding", "embedding_data", "spread_rows"]

# Smallest share of forgotten images. Among a hundred classes, a class would otherwise be a handful of points.
_FORGOTTEN_SHARE = 0.2
_LEGEND_CLASSES = 20
_VECTOR_POINTS = 8000
_PANELS_PER_ROW = 4

Points = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EmbeddingData(ClassNames):
    """Place of each image under each model, in one map."""

    points: Mapping[str, Points]
    """Places by model, (n, 2), of the same images in the same order."""
    labels: Rows
    """True classes, (n,)."""
    rows: Rows
    """Indices of the drawn images among the given images, (n,)."""
    total: int
    """Number of given images."""
    method: Literal["opentsne", "scikit-learn"] | None = None
    """Library that computed the map."""

    @property
    def is_forgotten(self) -> NDArray[np.bool_]:
        """Whether each image is of a forgotten class, (n,)."""
        return np.isin(self.labels, self.forgotten)


def embedding_data(
    features: Mapping[str, Tensor],
    labels: Tensor,
    *,
    classes: Sequence[str],
    forgotten: Collection[int],
    limit: int = 1000,
    seed: int = 0,
    method: EmbeddingMethod = "auto",
) -> EmbeddingData:
    """Map the features of several models to one plane, in which a place means the same for all models.

    First the features of each model are centred, scaled and rotated into the original's frame (orthogonal Procrustes on
    the retained images). The bases of two networks differ by a rotation that has no meaning.

    Args:
        features: Features by model, each (n, d), of the same images. The model "original" is required, "retrained" is
            the reference, and other names are unlearned models. Widths may differ.
        labels: True classes, (n,).
        classes: Names of all classes.
        forgotten: Indices of the forgotten classes.
        limit: Largest number of images. All classes keep their shares, but at least a fifth is forgotten images.
        seed: Seed of the chosen images and of the map.
        method: Library for t-SNE. By default openTSNE if it is installed, otherwise scikit-learn.

    Examples:
        >>> features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
        >>> data = embedding_data(
        ...     {"original": features, "unlearned": -features}, torch.arange(40) % 2,
        ...     classes=["cat", "dog"], forgotten=[0], limit=20, method="scikit-learn",
        ... )
        >>> data.points["unlearned"].shape, data.total
        ((20, 2), 40)
    """
    resolved = resolve_method(method)
    every = labels.detach().cpu().numpy().astype(np.int64)
    _check(features, every, classes)
    if min(limit, len(every)) < 3:
        raise UsageError(f"limit is {limit} of {len(every)} images; a map needs at least 3 images.")
    is_forgotten = np.isin(every, list(forgotten))
    drawn_rows = spread_rows(every, is_forgotten, limit, share=_FORGOTTEN_SHARE, seed=seed)
    # The original comes first, because the others are put into its map.
    order = ["original", *(name for name in features if name != "original")]
    aligned = _aligned({name: features[name] for name in order}, is_forgotten, drawn_rows)
    points = (fixed_map if resolved == "opentsne" else joint_map)(aligned, seed)
    return EmbeddingData(
        points=dict(zip(order, np.split(points, len(order)), strict=True)),
        labels=every[drawn_rows],
        rows=drawn_rows,
        total=len(every),
        classes=tuple(classes),
        forgotten=tuple(sorted(forgotten)),
        method=resolved,
    )


def draw_embedding(data: EmbeddingData, *, theme: Theme = "light") -> Figure:
    """Draw one panel per model, with the forgotten classes in dark red and the retrained model in a gold frame."""
    names = in_order(data.points)
    columns = min(len(names), _PANELS_PER_ROW)
    lines = math.ceil(len(names) / columns)
    with drawing(theme) as style:
        side = FULL_WIDTH / max(columns, 3)
        figure = style.figure(side * columns, (side + 0.18) * lines + 0.62)
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for axes, name in zip(grid.flat, names, strict=False):
            _draw_points(axes, data, data.points[name], style)
            style.bare(axes)
            style.title_model(axes, name)
            axes.set_box_aspect(1)
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        _square_limits(grid.flat[0], np.concatenate(list(data.points.values())))
        counts = _counts(data)
        notes = [f"t-SNE, one map for all models; {counts}."]
        handles = _legend(data, style, notes)
        style.legend(figure, handles, min(len(handles), 6))
        text = f"t-SNE map of features under {listed(names)}: {counts}, forgotten {data.forgotten_words} in dark red."
        return finish(style, figure, text, notes)


def _draw_points(axes: Axes, data: EmbeddingData, points: Points, style: Style) -> None:
    """Draw the retained images, and the forgotten ones as larger diamonds on top."""
    colors = np.array(style.class_colors(len(data.classes), data.forgotten))
    size = float(np.clip(4000 / max(len(data.labels), 1), 1.5, 9.0))
    dense = len(data.labels) * len(data.points) > _VECTOR_POINTS
    is_forgotten = data.is_forgotten
    retained_colors = colors[data.labels[~is_forgotten]]
    x, y = points[~is_forgotten].T
    axes.scatter(x, y, s=size, c=retained_colors, alpha=0.75, linewidths=0, rasterized=dense)
    x, y = points[is_forgotten].T
    diamonds = axes.scatter(x, y, s=1.7 * size, c=style.forgotten, marker="D", rasterized=dense)
    diamonds.set(linewidths=0.25, edgecolors=style.background)


def _legend(data: EmbeddingData, style: Style, notes: list[str]) -> list[Line2D]:
    """Return the entries of the legend; note how many classes have none."""
    handles = []
    if data.forgotten:
        names = listed([data.classes[label] for label in data.forgotten], most=2)
        name = plain_text(f"forgotten: {names}", length=48)
        handles.append(style.key(name, marker="D", color=style.forgotten, size=4))
    present = [label for label in np.unique(data.labels).tolist() if label not in data.forgotten]
    if len(present) > _LEGEND_CLASSES:
        notes.append(f"{len(present):,} retained classes share {len(style.class_palette)} colours.")
        return handles
    colors = style.class_colors(len(data.classes), data.forgotten)
    named = [style.key(plain_text(data.classes[label]), marker="o", color=colors[label], size=4) for label in present]
    return handles + named


def _counts(data: EmbeddingData) -> str:
    count = len(data.labels)
    images = f"{count:,} of {data.total:,} images" if count < data.total else f"{count:,} images"
    return f"{images}, {int(data.is_forgotten.sum()):,} of them forgotten"


def _square_limits(axes: Axes, points: Points) -> None:
    low, high = points.min(axis=0), points.max(axis=0)
    middle, half = (low + high) / 2, 0.54 * max(float((high - low).max()), 1e-9)
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))


def _check(features: Mapping[str, Tensor], labels: Rows, classes: Sequence[str]) -> None:
    if "original" not in features:
        raise UsageError(f"The original's features are missing; there are {', '.join(features) or 'none'}.")
    for name, rows in features.items():
        if rows.ndim != 2 or len(rows) != len(labels):
            raise UsageError(
                f"The features of {name} have shape {tuple(rows.shape)}; expected one row to each of {len(labels)} "
                "images."
            )
        if not bool(torch.isfinite(rows).all()):
            raise UsageError(f"The features of {name} hold NaN or infinite values; the model has diverged.")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= len(classes)):
        raise UsageError(f"labels run from {labels.min()} to {labels.max()}, but there are {len(classes)} classes.")


def spread_rows(labels: Rows, is_forgotten: NDArray[np.bool_], limit: int, *, share: float, seed: int = 0) -> Rows:
    """Return at most `limit` rows: a stratified choice on each side, with at least a `share` of forgotten images.

    All rows are returned if there are at most `limit`.
    """
    if len(labels) <= limit:
        return np.arange(len(labels))
    largest = max(math.ceil(limit * max(is_forgotten.mean(), share)), limit - int((~is_forgotten).sum()))
    count = min(int(is_forgotten.sum()), largest)
    sides = ((np.flatnonzero(is_forgotten), count), (np.flatnonzero(~is_forgotten), limit - count))
    return np.sort(np.concatenate([side[stratified_rows(labels[side], size, seed)] for side, size in sides if size]))


def _aligned(features: Mapping[str, Tensor], is_forgotten: NDArray[np.bool_], drawn_rows: Rows) -> list[Points]:
    """Return the drawn rows of each model in the original's frame, padded to the same width."""
    rows = {name: values.detach().to("cpu", torch.float64) for name, values in features.items()}
    retained = torch.from_numpy(~is_forgotten)
    # With fewer than two retained images the fit uses all images.
    fitted = retained if int(retained.sum()) > 1 else torch.ones_like(retained)
    target = rows["original"]
    width = max(values.shape[1] for values in rows.values())
    aligned = []
    for name, values in rows.items():
        drawn = values[torch.from_numpy(drawn_rows)]
        if _varies(values[fitted]) and _varies(target[fitted]):
            alignment = procrustes(values[fitted], target[fitted])
            moved = alignment.target(drawn) if name == "original" else alignment(drawn)
        else:
            moved = drawn - values[fitted].mean(dim=0)
        aligned.append(torch.nn.functional.pad(moved, (0, width - moved.shape[1])).numpy())
    return aligned


def _varies(rows: Tensor) -> bool:
    center = rows.mean(dim=0)
    return float((rows - center).norm(dim=1).max()) > 1e-9 * (1 + float(center.norm()))
