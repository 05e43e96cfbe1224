"""t-SNE of the features of several models in one shared map."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from pour.data.draws import stratified_rows
from pour.errors import UsageError
from pour.geometry.procrustes import procrustes
from pour.report.figures.style import FULL_WIDTH, ROLE_TITLES, Theme, drawing, finish, listed, plain_text
from pour.report.figures.tsne import EmbeddingMethod, fixed_map, joint_map, resolve_method

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.figure import Figure

__all__ = ["EmbeddingData", "EmbeddingMethod", "draw_embedding", "embedding_data"]

# A forgotten class would be a handful of points among a hundred classes.
_FORGOTTEN_SHARE = 0.2
_LEGEND_CLASSES = 20
_VECTOR_POINTS = 8000
_PANELS_IN_A_ROW = 4

Points = NDArray[np.float64]
Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EmbeddingData:
    """Where each image lies under each model, in one map."""

    points: Mapping[str, Points]
    """(n, 2) by model, the same images in the same order."""
    labels: Rows
    """(n,) true classes."""
    rows: Rows
    """(n,) which of the given images these are."""
    total: int
    """How many images were given."""
    classes: tuple[str, ...]
    forgotten: tuple[int, ...]
    method: Literal["opentsne", "scikit-learn"]

    @property
    def is_forgotten(self) -> NDArray[np.bool_]:
        """(n,) whether an image is of a forgotten class."""
        return np.isin(self.labels, self.forgotten)


def embedding_data(
    features: Mapping[str, Tensor],
    labels: Tensor,
    *,
    classes: Sequence[str],
    forgotten: Collection[int],
    limit: int = 1000,
    perplexity: float = 30.0,
    seed: int = 0,
    method: EmbeddingMethod = "auto",
) -> EmbeddingData:
    """Map the features of several models to the plane, so that a place means the same for all of them.

    Features of other models are first brought into the original's frame: centred, scaled and rotated (orthogonal
    Procrustes on the retained images), since two networks' bases differ by a rotation that means nothing.

    Args:
        features: (n, d) by model, of the same images; "original" must be there, "retrained" is the reference and any
            other name is an unlearned model. Widths may differ.
        labels: (n,) true classes.
        classes: names of all classes.
        forgotten: indices of the forgotten ones.
        limit: at most this many images, every class in its share, but the forgotten ones in at least a fifth.
        perplexity: how many neighbours count; lowered where there are few images.
        seed: fixes the choice of images and the map.
        method: by default openTSNE where it is installed, else scikit-learn.

    Example:
        >>> features = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
        >>> data = embedding_data(
        ...     {"original": features, "unlearned": -features}, torch.arange(40) % 2,
        ...     classes=["cat", "dog"], forgotten=[0], limit=20, method="scikit-learn",
        ... )
        >>> data.points["unlearned"].shape, data.total
        ((20, 2), 40)
    """
    resolved = resolve_method(method)
    if limit < 3:
        raise UsageError(f"limit is {limit}; a map needs at least 3 images.")
    every = labels.detach().cpu().numpy().astype(np.int64)
    _check(features, every, classes)
    gone = tuple(sorted(forgotten))
    chosen = _chosen(every, gone, limit, seed)
    # The original comes first: its map is the one that the others are put into.
    order = ["original", *(name for name in features if name != "original")]
    aligned = _aligned({name: features[name] for name in order}, every, gone, chosen)
    found = (fixed_map if resolved == "opentsne" else joint_map)(aligned, perplexity, seed)
    count = len(chosen)
    points = {name: found[i * count : (i + 1) * count] for i, name in enumerate(order)}
    return EmbeddingData(
        points=points,
        labels=every[chosen],
        rows=chosen,
        total=len(every),
        classes=tuple(classes),
        forgotten=gone,
        method=resolved,
    )


def draw_embedding(data: EmbeddingData, *, theme: Theme = "light") -> Figure:
    """Draw one panel to a model, forgotten classes in dark red on top, the retrained model's framed in gold."""
    names = sorted(data.points, key=lambda name: {"original": 0, "retrained": 2}.get(name, 1))
    columns = min(len(names), _PANELS_IN_A_ROW)
    lines = math.ceil(len(names) / columns)
    gone = data.is_forgotten
    notes = [f"t-SNE, one map for all models; {_counted(data)}."]
    with drawing(theme) as style:
        side = FULL_WIDTH / max(columns, 3)
        figure = style.figure(side * columns, (side + 0.18) * lines + 0.62)
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        colors = np.array(style.class_colors(len(data.classes), data.forgotten))
        size = float(np.clip(4000 / max(len(data.labels), 1), 1.5, 9.0))
        dense = len(data.labels) * len(names) > _VECTOR_POINTS
        for axes, name in zip(grid.flat, names, strict=False):
            points = data.points[name]
            kept = points[~gone]
            axes.scatter(
                kept[:, 0],
                kept[:, 1],
                s=size,
                c=colors[data.labels[~gone]],
                alpha=0.75,
                linewidths=0,
                rasterized=dense,
            )
            axes.scatter(
                points[gone, 0],
                points[gone, 1],
                s=1.7 * size,
                c=style.forgotten,
                marker="D",
                linewidths=0.25,
                edgecolors=style.background,
                rasterized=dense,
            )
            axes.set_title(plain_text(ROLE_TITLES.get(name, name)))
            style.bare(axes)
            if name == "retrained":
                style.frame_reference(axes)
            axes.set_box_aspect(1)
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        _square_limits(grid.flat[0], np.concatenate(list(data.points.values())))
        present = [label for label in np.unique(data.labels).tolist() if label not in data.forgotten]
        handles = []
        if data.forgotten:
            name = _forgotten_name(data)
            handles.append(Line2D([], [], marker="D", linestyle="", color=style.forgotten, markersize=4, label=name))
        if len(present) <= _LEGEND_CLASSES:
            handles += [
                Line2D(
                    [],
                    [],
                    marker="o",
                    linestyle="",
                    color=colors[label],
                    markersize=4,
                    label=plain_text(data.classes[label]),
                )
                for label in present
            ]
        else:
            notes.append(f"{len(present):,} retained classes share {len(style.class_palette)} colours.")
        if handles:
            figure.legend(handles=handles, loc="outside upper center", ncols=min(len(handles), 6))
        style.note(figure, notes)
        return finish(
            figure,
            f"t-SNE map of features under {listed(names)}: {_counted(data)}, "
            f"forgotten {listed([data.classes[label] for label in data.forgotten])} in dark red.",
        )


def _forgotten_name(data: EmbeddingData) -> str:
    if len(data.forgotten) == 1:
        return plain_text(f"forgotten: {data.classes[data.forgotten[0]]}")
    return plain_text(f"forgotten: {listed([data.classes[label] for label in data.forgotten], most=2)}", length=48)


def _counted(data: EmbeddingData) -> str:
    shown, gone = len(data.labels), int(data.is_forgotten.sum())
    images = f"{shown:,} of {data.total:,} images" if shown < data.total else f"{shown:,} images"
    return f"{images}, {gone:,} of them forgotten"


def _square_limits(axes: Any, points: Points) -> None:
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
    if len(labels) < 3:
        raise UsageError(f"{len(labels)} images are too few for a map; give at least 3.")
    if int(labels.min()) < 0 or int(labels.max()) >= len(classes):
        raise UsageError(f"labels run from {labels.min()} to {labels.max()}, but there are {len(classes)} classes.")


def _chosen(labels: Rows, forgotten: tuple[int, ...], limit: int, seed: int) -> Rows:
    gone = np.isin(labels, forgotten)
    fair = limit * gone.mean()
    places = min(int(gone.sum()), math.ceil(max(fair, _FORGOTTEN_SHARE * limit)))
    if len(labels) <= limit:
        return np.arange(len(labels))
    sides = [
        np.flatnonzero(side)[stratified_rows(labels[side], count, seed)]
        for side, count in ((gone, places), (~gone, limit - places))
        if side.any() and count
    ]
    return np.sort(np.concatenate(sides))


def _aligned(
    features: Mapping[str, Tensor], labels: Rows, forgotten: tuple[int, ...], chosen: Rows
) -> list[NDArray[np.float64]]:
    rows = {name: values.detach().to("cpu", torch.float64) for name, values in features.items()}
    kept = torch.from_numpy(~np.isin(labels, forgotten))
    # Without two retained images there is nothing to fit on but the forgotten ones.
    fitted = kept if int(kept.sum()) > 1 else torch.ones_like(kept)
    taken = torch.from_numpy(chosen)
    target = rows["original"]
    width = max(values.shape[1] for values in rows.values())
    found = []
    for name, values in rows.items():
        if not (_varies(values[fitted]) and _varies(target[fitted])):
            moved = values[taken] - values[fitted].mean(dim=0)
        else:
            alignment = procrustes(values[fitted], target[fitted])
            moved = alignment.target(values[taken]) if name == "original" else alignment(values[taken])
        found.append(torch.nn.functional.pad(moved, (0, width - moved.shape[1])).numpy())
    return found


def _varies(rows: Tensor) -> bool:
    center = rows.mean(dim=0)
    return float((rows - center).norm(dim=1).max()) > 1e-9 * (1 + float(center.norm()))
