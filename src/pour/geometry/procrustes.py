"""Orthogonal Procrustes: rotate the features of one network into the frame of another."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pour.errors import UsageError
from pour.geometry._inputs import as_samples, check_samples, double_blocks, sum_rows

__all__ = ["Alignment", "procrustes", "procrustes_distance"]


@dataclass(frozen=True)
class Alignment:
    """Result of `procrustes`: call it on source features, and `target` on target features."""

    source_center: Tensor
    """`(d1,)` Mean of the fitted source features."""
    source_scale: Tensor
    """Root mean squared norm of the centred source features."""
    target_center: Tensor
    """`(d2,)` Mean of the fitted target features."""
    target_scale: Tensor
    """Root mean squared norm of the centred target features."""
    rotation: Tensor
    """`(d, d)` orthogonal map from source to target, d the larger of both widths."""

    def __call__(self, source: Tensor) -> Tensor:
        """Centre, scale and rotate `(n, d1)` source features into the target's frame, `(n, d)` in float64."""
        return self._standardize(source, self.source_center, self.source_scale, "source") @ self.rotation

    def target(self, target: Tensor) -> Tensor:
        """Centre and scale `(n, d2)` target features, `(n, d)` in float64."""
        return self._standardize(target, self.target_center, self.target_scale, "target")

    def _standardize(self, samples: Tensor, center: Tensor, scale: Tensor, name: str) -> Tensor:
        rows = as_samples(samples, name).to(center.device)
        if rows.shape[1] != len(center):
            raise UsageError(f"{name} has width {rows.shape[1]}, the alignment was fitted on {len(center)}.")
        return pad((rows - center) / scale, (0, len(self.rotation) - len(center)))


def procrustes(source: Tensor, target: Tensor) -> Alignment:
    """Compute the orthogonal map that brings `source` closest to `target`, row by row.

    Both are centred and scaled to unit mean squared norm, and the narrower features are padded with zeros. With
    `X^T Y = U S V^T` the map is `U V^T`. It is fitted on one set of images and may be applied to another. Along
    directions in which the fitted features do not vary, it is an arbitrary orthogonal map. With fewer rows than
    features there always are such directions.

    Args:
        source: `(n, d1)` features.
        target: `(n, d2)` features of the same n inputs.

    Examples:
        >>> import torch
        >>> from pour.geometry import procrustes
        >>> x = torch.randn(50, 4)
        >>> rotation = torch.linalg.qr(torch.randn(4, 4)).Q
        >>> y = 3 * x @ rotation + 1
        >>> aligned = procrustes(x, y)
        >>> torch.allclose(aligned(x), aligned.target(y), atol=1e-5)
        True
    """
    x, y = check_samples(source, "source"), check_samples(target, "target")
    y = y.to(x.device)
    if len(x) != len(y):
        raise UsageError(f"source has {len(x)} rows and target {len(y)}; they must be features of the same inputs.")
    x_center, x_scale = _center_and_scale(x, "source")
    y_center, y_scale = _center_and_scale(y, "target")
    width = max(x.shape[1], y.shape[1])
    product = x_center.new_zeros(x.shape[1], y.shape[1])
    for a, b in zip(double_blocks(x), double_blocks(y), strict=True):
        product.addmm_(((a - x_center) / x_scale).T, (b - y_center) / y_scale)
    left, _, right = torch.linalg.svd(pad(product, (0, width - y.shape[1], 0, width - x.shape[1])))
    return Alignment(x_center, x_scale, y_center, y_scale, left @ right)


def procrustes_distance(x: Tensor, y: Tensor) -> Tensor:
    """Return the root mean squared distance of `(n, d1)` and `(n, d2)` features after the best alignment.

    The distance is 0 for features that differ by a shift, a scale and a rotation. It is at most the square root of 2.

    Examples:
        >>> import torch
        >>> from pour.geometry import procrustes_distance
        >>> x = torch.randn(20, 3)
        >>> float(procrustes_distance(x, -2 * x)) < 1e-5
        True
    """
    alignment = procrustes(x, y)
    difference = alignment(x) - alignment.target(y)
    return difference.square().sum(dim=1).mean().sqrt()


def _center_and_scale(rows: Tensor, name: str) -> tuple[Tensor, Tensor]:
    center = sum_rows(rows)[0] / len(rows)
    total = torch.stack([(block - center).square().sum() for block in double_blocks(rows)]).sum()
    scale = (total / len(rows)).sqrt()
    if not float(scale) > torch.finfo(center.dtype).eps * float(center.norm()):
        raise UsageError(f"All rows of {name} are equal; features without variation cannot be aligned.")
    return center, scale
