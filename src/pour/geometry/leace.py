"""LEACE: the smallest affine change of features after which no linear classifier recognises a concept."""

from __future__ import annotations

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.geometry.eraser import Eraser

__all__ = ["LeaceFitter"]

# Directions whose whitened covariance with the concept is below this are sampling noise (the published value).
_SMALLEST_SIGNAL = 0.01


class LeaceFitter:
    r"""Compute the eraser of LEACE (Belrose et al., 2023) from sums over batches. The sums take d x d numbers.

    With $\Sigma$ the covariance of features x, and $\Pi$ the orthogonal projector on the columns of
    $\Sigma^{-1/2} \mathrm{Cov}(x, y)$,

    $$
    E(x) = x - \Sigma^{1/2} \Pi \Sigma^{-1/2} (x - \bar x)
    $$

    has zero covariance with y, so that every linear classifier of y on it is constant. Among all affine maps with this
    property it moves x least. The orthogonal form replaces $\Sigma$ by the identity.

    Args:
        num_features: Width d.
        num_concepts: Number of indicator columns of y.

    Examples:
        >>> x = torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 0.0], [2.0, 1.0]])
        >>> y = torch.tensor([0.0, 0.0, 1.0, 1.0])
        >>> LeaceFitter(2, 1).update(x, y).eraser(shrinkage=False)(x)
        tensor([[1., 0.],
                [1., 1.],
                [1., 0.],
                [1., 1.]])
    """

    def __init__(self, num_features: int, num_concepts: int) -> None:
        if num_features < 2 or num_concepts < 1:
            raise UsageError(f"LEACE needs at least 2 features and 1 concept, not {num_features} and {num_concepts}.")
        self.count = 0
        self._dtype = torch.float32
        self._device = torch.device("cpu")
        # Sums are relative to the mean of the first batch: squares of a large common mean would hide the spread.
        self._center = torch.zeros(num_features, dtype=torch.float64)
        self._sum = torch.zeros(num_features, dtype=torch.float64)
        self._concepts = torch.zeros(num_concepts, dtype=torch.float64)
        self._squares = torch.zeros(num_features, num_features, dtype=torch.float64)
        self._cross = torch.zeros(num_features, num_concepts, dtype=torch.float64)

    def update(self, features: Tensor, concepts: Tensor) -> LeaceFitter:
        """Add rows of features (n, d) and of concept indicators (n,) or (n, concepts)."""
        x = as_double(features)
        z = as_double(concepts.to(x.device, torch.float64))
        z = z.unsqueeze(1) if z.ndim == 1 else z
        if x.ndim != 2 or x.shape[1] != len(self._sum) or z.shape != (len(x), len(self._concepts)):
            raise UsageError(
                f"Features {tuple(features.shape)} and concepts {tuple(concepts.shape)} do not fit a fitter for "
                f"{len(self._sum)} features and {len(self._concepts)} concepts."
            )
        if not self.count and len(x):
            self._dtype, self._device = features.dtype, features.device
            for name in ("_sum", "_concepts", "_squares", "_cross"):
                setattr(self, name, getattr(self, name).to(x.device))
            self._center = x.mean(dim=0)
        x = x - self._center
        self.count += len(x)
        self._sum += x.sum(dim=0)
        self._concepts += z.sum(dim=0)
        self._squares += x.T @ x
        self._cross += x.T @ z
        return self

    def eraser(self, *, orthogonal: bool = False, shrinkage: bool = True) -> Eraser:
        """Return the eraser for all rows so far.

        Args:
            orthogonal: Replace the covariance by the identity. The eraser is then an orthogonal projection around the
                mean.
            shrinkage: Shrink the covariance towards a multiple of the identity by the optimal linear rule of Bodnar,
                Gupta and Parolya (2014). The erased directions do not change. With few rows, the other changes vary
                less.
        """
        if self.count < 2:
            raise UsageError("LEACE needs at least two images; pass more.")
        shift = self._sum / self.count
        covariance = self._squares / self.count - torch.outer(shift, shift)
        cross = self._cross / self.count - torch.outer(shift, self._concepts / self.count)
        mean = self._center + shift
        if not bool(torch.isfinite(covariance).all()):
            raise UsageError("The features for LEACE contain NaN or infinite values; check the model.")
        if orthogonal:
            replies = readings = _column_basis(cross).T
        else:
            if shrinkage:
                covariance = _shrunk(covariance, self.count)
            replies, readings = _oblique(covariance, cross)
        return Eraser(replies, readings, readings @ mean).to(device=self._device, dtype=self._dtype)


def _oblique(covariance: Tensor, cross: Tensor) -> tuple[Tensor, Tensor]:
    """Return replies and readings of LEACE, reduced if they would increase the total variance of the features."""
    values, vectors = torch.linalg.eigh(covariance)
    alive = values > values[-1] * len(values) * torch.finfo(values.dtype).eps
    values, vectors = values[alive], vectors[:, alive]
    whiten = vectors / values.sqrt() @ vectors.T
    left, signal, _ = torch.linalg.svd(whiten @ cross, full_matrices=False)
    left = left[:, signal > _SMALLEST_SIGNAL]
    if not left.shape[1]:
        raise UsageError("The features show no linear trace of the classes, so LEACE has nothing to erase.")
    replies = (vectors * values.sqrt() @ vectors.T @ left).T
    readings = (whiten @ left).T
    # Both forms subtract inside the same span, so any mixture of both erases the same directions.
    basis = _column_basis(replies.T).T
    oblique = (basis @ replies.T) @ readings
    share = _largest_share(covariance, basis, oblique - basis)
    return basis, basis + share * (oblique - basis)


def _largest_share(covariance: Tensor, basis: Tensor, step: Tensor) -> float:
    """Return the largest t in [0, 1] at which z - basis^T (basis + t step) z has at most the total variance of z.

    The mixed terms cancel: with S the covariance the trace grows by t^2 tr(step S step^T) - tr(basis S basis^T).
    """
    removed = float(((basis @ covariance) * basis).sum())
    added = float(((step @ covariance) * step).sum())
    return 1.0 if added <= removed else (removed / added) ** 0.5


def _shrunk(covariance: Tensor, count: int) -> Tensor:
    """Return the optimal linear shrinkage of a sample covariance towards its mean variance times the identity."""
    width = len(covariance)
    trace = covariance.diagonal().sum()
    norm = covariance.square().sum()
    # With the target t I, t = tr S / d, the rule needs only the trace and the Frobenius norm of S.
    spread = norm - trace.square() / width
    share = 1 - trace.square() / (count * spread)
    share = share.clamp(0, 1) if float(spread) > 0 else torch.zeros_like(trace)
    identity = torch.eye(width, dtype=covariance.dtype, device=covariance.device)
    shrunk: Tensor = share * covariance + (1 - share) * (trace / width) * identity
    return shrunk


def _column_basis(columns: Tensor) -> Tensor:
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    if not float(values[0]) > 0:
        raise UsageError("The features have no covariance with the classes, so there is nothing to erase.")
    basis: Tensor = left[:, values > values[0] * max(columns.shape) * torch.finfo(values.dtype).eps]
    return basis
