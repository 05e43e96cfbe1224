"""Neural Collapse: four measures of how far features and head have become a simplex."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_labels, as_samples, check_samples, double_blocks, grouped_blocks, sum_rows
from pour.geometry.angles import (
    AngleStatistics,
    angle_statistics,
    pairwise_angles,
    random_centered_rows,
)

__all__ = [
    "AngleStatistics",
    "NeuralCollapse",
    "angle_statistics",
    "neural_collapse",
    "pairwise_angles",
    "random_centered_rows",
]


@dataclass(frozen=True)
class NeuralCollapse:
    """Result of `neural_collapse`. Angles are in degrees; values that need a head are None without one."""

    num_classes: int
    """Number C of classes that occur in the labels."""
    num_samples: int
    """Number of feature rows."""
    nc1: float
    """Within-class against between-class variation, tr(S_W S_B^+) / C: 0 when collapsed, infinite for equal means."""
    nc2_norm_spread: float
    """Standard deviation over mean of the centred class means' norms; 0 when collapsed."""
    nc2_angle_mean: float
    """Mean angle between centred class means. It is close to the ideal for almost any means, so it proves nothing."""
    nc2_angle_std: float
    """Standard deviation of these angles; 0 when collapsed. Compare it with `random_angle_std`."""
    nc2_ideal_angle: float
    """Angle of a simplex, arccos(-1/(C-1))."""
    nc2_angle_deviation: float
    """Mean absolute difference of these angles from the ideal one; 0 when collapsed."""
    random_angle_std: float
    """Standard deviation of the angles of random centred rows of the same number and width."""
    nc3: float | None = None
    """Frobenius distance of the head and the centred means, each divided by its Frobenius norm; 0 to 2."""
    nc4: float | None = None
    """Share of samples that the head and the nearest class mean put in the same class; 1 when collapsed."""
    weight_angle_mean: float | None = None
    """Mean angle between the head's rows, as in the paper's figure."""
    weight_angle_std: float | None = None
    """Standard deviation of the angles between the head's rows."""

    def to_dict(self) -> dict[str, float | None]:
        """Return the measures by name."""
        return asdict(self)


def neural_collapse(
    features: Tensor, labels: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> NeuralCollapse:
    r"""Compute NC1 to NC4 (Papyan, Han and Donoho, 2020) of features, in float64.

    With class means $\mu_c$, their mean $\mu$ and the centred means $m_c = \mu_c - \mu$,

    $$
    S_W = \tfrac1n \sum_i (z_i - \mu_{y_i})(z_i - \mu_{y_i})^\top, \qquad
    S_B = \tfrac1C \sum_c m_c m_c^\top, \qquad
    \mathrm{NC1} = \tfrac1C \operatorname{tr}(S_W S_B^+).
    $$

    A class without samples is ignored, and so is its row of the head.

    Args:
        features: `(n, d)`, the input of the head.
        labels: `(n,)` class indices.
        weight: `(C, d)` of the head, row c for class c; without it NC3 and NC4 are None.
        bias: `(C,)` of the head.

    Examples:
        >>> import torch
        >>> from pour.geometry import neural_collapse, simplex_etf
        >>> means = simplex_etf(4, 16)
        >>> labels = torch.arange(4).repeat(8)
        >>> collapsed = neural_collapse(means[labels], labels, weight=3 * means)
        >>> round(collapsed.nc1, 6), round(collapsed.nc2_angle_std, 3), round(collapsed.nc3, 5), collapsed.nc4
        (0.0, 0.0, 0.0, 1.0)
    """
    rows = check_samples(features, "features")
    classes, index, counts = torch.unique(as_labels(labels, rows), return_inverse=True, return_counts=True)
    head, offset = _head_of_classes(weight, bias, classes, rows.shape[1])
    means = sum_rows(rows, index=index, count=len(classes)) / counts.unsqueeze(1)
    centered = means - means.mean(dim=0)
    values, axes = _between_class_axes(means, features.dtype)
    nc1 = math.inf
    if len(values):
        # The range of S_B^+ is the span of the centred means M = U diag(s) V^T, with the eigenvalues C / s^2. So
        # tr(S_W S_B^+) = sum_k (C / s_k^2) v_k^T S_W v_k needs the variance along C - 1 axes and no d x d inverse.
        within = torch.zeros_like(values)
        for block, group in grouped_blocks(rows, index):
            within += ((block - means[group]) @ axes.T).square().sum(dim=0)
        nc1 = float((within / len(rows) / values.square()).sum())
    else:
        # All means are equal, so there is no between-class variation and no direction.
        centered = torch.zeros_like(centered)
    norms = torch.linalg.vector_norm(centered, dim=1)
    angles = angle_statistics(centered)
    control = random_centered_rows(len(means), means.shape[1], torch.Generator().manual_seed(0))
    of_head: dict[str, float] = {}
    if head is not None:
        weight_angles = angle_statistics(head)
        of_head = {
            "nc3": float((head / head.norm() - centered / centered.norm()).norm()),
            "nc4": sum(int(_agreements(block, means, head, offset).sum()) for block in double_blocks(rows)) / len(rows),
            "weight_angle_mean": weight_angles.mean,
            "weight_angle_std": weight_angles.std,
        }
    return NeuralCollapse(
        num_classes=len(classes),
        num_samples=len(rows),
        nc1=nc1,
        nc2_norm_spread=float(norms.std(correction=0) / norms.mean()),
        nc2_angle_mean=angles.mean,
        nc2_angle_std=angles.std,
        nc2_ideal_angle=angles.ideal,
        nc2_angle_deviation=angles.deviation,
        random_angle_std=angle_statistics(control).std,
        **of_head,
    )


def _head_of_classes(
    weight: Tensor | None, bias: Tensor | None, classes: Tensor, width: int
) -> tuple[Tensor | None, Tensor | None]:
    """Return the rows of the head for the classes that occur, in float64. Raise UsageError if the head does not fit."""
    if int(classes.min()) < 0:
        raise UsageError(f"labels contain {int(classes.min())}; count classes from 0.")
    if len(classes) < 2:
        raise UsageError(f"labels contain class {int(classes[0])} only; Neural Collapse compares at least two classes.")
    if weight is None:
        if bias is not None:
            raise UsageError("bias is set without weight; pass the head's weight too.")
        return None, None
    rows = as_samples(weight, "weight").to(classes.device)
    if rows.shape[1] != width:
        raise UsageError(f"weight has width {rows.shape[1]}, the features have {width}; they must be the head's input.")
    if int(classes.max()) >= len(rows):
        raise UsageError(f"labels contain class {int(classes.max())}, but weight has {len(rows)} rows only.")
    if bias is None:
        return rows[classes], None
    if bias.shape != rows.shape[:1]:
        raise UsageError(f"bias has shape {tuple(bias.shape)}; expected ({len(rows)},), one value per row of weight.")
    return rows[classes], bias.detach().to(rows)[classes]


def _between_class_axes(means: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return singular values and axes of the centred class means of features that were rounded to `dtype`."""
    _, values, axes = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)
    # Centred rows sum to zero, so the C-th singular value is rounding.
    values, axes = values[: len(means) - 1], axes[: len(means) - 1]
    # A value that is tiny compared with the means is rounding too: a projection leaves such a value along the
    # directions that it removes. The error of a value grows with the root of the width. The limit of 1e-3 keeps
    # half precision from discarding all values.
    size = max(means.shape)
    tiny = max(size * torch.finfo(means.dtype).eps, min(4 * math.sqrt(size) * torch.finfo(dtype).eps, 1e-3))
    is_axis = values > tiny * float(means.norm())
    return values[is_axis], axes[is_axis]


def _agreements(rows: Tensor, means: Tensor, head: Tensor, bias: Tensor | None) -> Tensor:
    """Return for each row whether the head's prediction is the class of the nearest mean, `(n,)` booleans."""
    scores = rows @ head.T if bias is None else rows @ head.T + bias
    # |z - mu|^2 / 2 without |z|^2 / 2, which is the same for all classes.
    nearest = (means.square().sum(dim=1) / 2 - rows @ means.T).argmin(dim=1)
    return scores.argmax(dim=1) == nearest
