"""Features as rows, for heads on vectors, token sequences and maps, with images or pixels that have labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from pour.data.samples import checked_batch
from pour.models.modes import evaluating
from pour.models.networks.segmentation import cell_labels
from pour.models.tap import tap_features, to_unit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from torch import Tensor, nn

    from pour.models.head import Head
    from pour.training.run import Run

__all__ = [
    "all_features_of",
    "class_rows",
    "feature_rows",
    "features_of",
    "forgotten_rows",
    "is_among",
    "pool_features",
    "row_distances",
    "row_mean",
]

# Number of points per side at which a cell of a feature map is compared with the labels of its pixels.
_POINTS = 4


def is_among(labels: Tensor, classes: Iterable[int]) -> Tensor:
    """Return for each label whether it is one of `classes`. No class is copied to the device in a captured step.

    Examples:
        >>> is_among(torch.arange(4), [1, 3])
        tensor([False,  True, False,  True])
    """
    result = torch.zeros_like(labels, dtype=torch.bool)
    for label in classes:
        result = result | (labels == label)
    return result


def features_of(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features before the head and the labels of each batch, on the device of the run, in evaluation mode."""
    model.to(run.torch_device)
    with evaluating(model), tap_features(model, head) as tap:
        for images, labels in map(checked_batch, batches):
            # The block ends before the yield, so that the caller can compute gradients.
            with torch.no_grad():
                model(to_unit(images.to(run.torch_device)))
            yield tap.features.float(), labels.to(run.torch_device)


def feature_rows(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features of each batch of images as rows (n, d) and one label per row; a map has a row per position."""
    for features, labels in features_of(model, head, batches, run):
        rows = features.movedim(head.dim, -1).reshape(-1, head.num_features)
        yield rows, labels.repeat_interleave(len(rows) // len(labels))


def all_features_of(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features and labels of all images at once, or of scenes batch by batch.

    The maps of all scenes together would not fit into memory.
    """
    images: list[tuple[Tensor, Tensor]] = []
    for features, labels in features_of(model, head, batches, run):
        if labels.ndim == 1:
            images.append((features, labels))
        else:
            yield features, labels
    if images:
        yield torch.cat([features for features, _ in images]), torch.cat([labels for _, labels in images])


def class_rows(
    model: nn.Module, head: Head, batches: Iterable[tuple[Tensor, Tensor]], classes: Collection[int], run: Run
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the features of `classes` as rows (n, d) and one label per row.

    An image has one row, the average over its positions. In a scene, each cell whose middle shows a class has a row.
    """
    for features, labels in all_features_of(model, head, batches, run):
        if labels.ndim == 1:
            yield pool_features(features, head.dim), labels
        else:
            cells = cell_labels(model, labels, (features.shape[2], features.shape[3]))
            selected = is_among(cells, classes)
            yield features.movedim(1, -1)[selected], cells[selected]


def pool_features(features: Tensor, dim: int) -> Tensor:
    """Return features (n, d), averaged over the positions of token sequences and maps.

    Args:
        features: Features whose dimension `dim` has the size d.
        dim: -1 for vectors and tokens, 1 for maps.

    Examples:
        >>> pool_features(torch.zeros(2, 64, 4, 4), 1).shape, pool_features(torch.zeros(2, 64), -1).shape
        (torch.Size([2, 64]), torch.Size([2, 64]))
    """
    return features if features.ndim == 2 else features.movedim(dim, -1).flatten(1, -2).mean(dim=1)


def row_distances(first: Tensor, second: Tensor, labels: Tensor) -> Tensor:
    """Return |first - second|^2 for each image (n,), or for each cell of a map (n, h, w) if pixels have labels."""
    squares = (first - second).square()
    return squares.flatten(1).sum(1) if labels.ndim == 1 else squares.sum(dim=1)


def forgotten_rows(model: nn.Module, labels: Tensor, classes: Collection[int], shape: tuple[int, ...]) -> Tensor:
    """Return 1 for each row of a forgotten class, otherwise 0, for rows of the given shape.

    All rows of a forget image belong to its class. In a scene, the cells that contain a pixel of `classes` do.

    Args:
        model: Network that computed the features.
        labels: Labels of forget images (n,), or of their pixels (n, H, W).
        classes: Indices of the forgotten classes.
        shape: (n, ...) for images, (n, h, w) for scenes.
    """
    if labels.ndim == 1:
        return torch.ones(shape, device=labels.device)
    points = cell_labels(model, labels, (_POINTS * shape[1], _POINTS * shape[2]))
    return F.max_pool2d(is_among(points, classes).float().unsqueeze(1), _POINTS).squeeze(1)


def row_mean(values: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted mean of the values of rows; 0 if all weights are 0."""
    return (values * weights).sum() / weights.sum().clamp(min=1)
