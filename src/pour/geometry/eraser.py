"""The eraser: an affine map of low rank that removes a concept from features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry._inputs import as_double, check_features, without_autocast
from pour.geometry.projector import Projector

__all__ = ["Eraser"]

# Largest singular value that counts as zero; readings and replies may be rounded to single precision.
_ROUNDING = 1e-4


class Eraser(nn.Module):
    r"""Remove a concept from features: replace `k` linear readings of the features by constants.

    $$
    E(z) = z - A^\top (B z - c)
    $$

    with readings B, replies A (both k x d) and a constant c of length k. LEACE has this form with
    $A^\top B = \Sigma^{1/2} \Pi \Sigma^{-1/2}$ and c = B mean(z). A `Projector` is A = B = Q, c = 0. Two
    erasers in a row are one eraser.

    Args:
        replies: A, `(k, d)`: the vector that is subtracted per unit of each reading.
        readings: B, `(k, d)`.
        constant: c, `(k,)`: the value of each reading at which nothing is subtracted.

    Examples:
        >>> erase = Eraser(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 1.0]]), torch.tensor([0.5]))
        >>> erase(torch.tensor([[2.0, 3.0]]))
        tensor([[-2.5000,  3.0000]])
    """

    replies: Tensor
    readings: Tensor
    constant: Tensor

    def __init__(self, replies: Tensor, readings: Tensor, constant: Tensor) -> None:
        super().__init__()
        if replies.ndim != 2 or 0 in replies.shape or readings.shape != replies.shape:
            raise UsageError(
                f"Replies and readings must both be (k, d), but are {tuple(replies.shape)} and {tuple(readings.shape)}."
            )
        if constant.shape != replies.shape[:1]:
            raise UsageError(f"The constant must have one value for each of {len(replies)} readings.")
        for name, value in (("replies", replies), ("readings", readings), ("constant", constant)):
            if not value.is_floating_point() or not bool(torch.isfinite(value).all()):
                raise UsageError(f"The {name} of an eraser must be finite floating-point numbers.")
            self.register_buffer(name, value.detach().clone())

    @classmethod
    def of(cls, projector: Projector) -> Eraser:
        """Return the eraser that computes the same as `projector`."""
        return cls(projector.basis, projector.basis, torch.zeros_like(projector.basis[:, 0]))

    @classmethod
    def onto(cls, rows: Tensor, offsets: Tensor) -> Eraser:
        r"""Return the orthogonal projection onto the affine subspace $\{z : V z + \beta = 0\}$.

        Of all maps onto the subspace, it moves each z the least.

        Args:
            rows: V, `(k, d)`, linearly independent.
            offsets: beta, `(k,)`.

        Examples:
            >>> Eraser.onto(torch.tensor([[2.0, 0.0]]), torch.tensor([-6.0]))(torch.tensor([1.0, 5.0]))
            tensor([3., 5.])
        """
        # V^T = Q R, so that V z + beta = 0 where Q^T z = -R^-T beta.
        Q, R = torch.linalg.qr(as_double(rows).T)
        sizes = R.diagonal().abs()
        if rows.shape[0] > rows.shape[1] or bool((sizes <= 1e-10 * sizes.max()).any()):
            raise UsageError("The rows of an affine subspace must be linearly independent.")
        constant = torch.linalg.solve_triangular(R.T, -as_double(offsets).unsqueeze(1), upper=False).squeeze(1)
        return cls(Q.T, Q.T, constant).to(rows.dtype)

    @classmethod
    def after(cls, first: Eraser | Projector, second: Eraser | Projector) -> Eraser | Projector:
        """Return the map that applies `first` and then `second`. Two projectors become one projector."""
        if isinstance(first, Projector) and isinstance(second, Projector):
            return first.then(second)
        return (first if isinstance(first, Eraser) else cls.of(first)).then(second)

    def forward(self, features: Tensor, *, dim: int = -1) -> Tensor:
        """Return `E(z)` for `features` z, whose dimension `dim` has the size d; dtype, device and shape stay."""
        check_features(features, dim, self.num_features, "eraser")
        with without_autocast(features.device):
            A, B, c = (part.to(features) for part in (self.replies, self.readings, self.constant))
            return features - ((features.movedim(dim, -1) @ B.T - c) @ A).movedim(-1, dim)

    def then(self, later: Eraser | Projector) -> Eraser:
        """Return a single eraser that applies this eraser and then `later`."""
        if isinstance(later, Projector):
            later = Eraser.of(later)
        if later.num_features != self.num_features:
            raise UsageError(
                f"An eraser of width {self.num_features} cannot be followed by one of width {later.num_features}."
            )
        dtype = torch.promote_types(self.replies.dtype, later.replies.dtype)
        A, B, c = (as_double(part) for part in (self.replies, self.readings, self.constant))
        A2, B2, c2 = (as_double(part).to(A.device) for part in (later.replies, later.readings, later.constant))
        # The later readings see features that have already lost the first replies: B2 E(z) = B2 z - B2 A^T (B z - c).
        lost = B2 @ A.T
        return Eraser(torch.cat([A, A2]), torch.cat([B, B2 - lost @ B]), torch.cat([c, c2 - lost @ c])).to(
            device=self.replies.device, dtype=dtype
        )

    def fold(self, weight: Tensor) -> Tensor:
        """Return `W - (W A^T) B` for the `(C, d)` weight W of a head, whose bias gains `offset`."""
        return weight - (weight @ self.replies.to(weight).T) @ self.readings.to(weight)

    def offset(self, weight: Tensor) -> Tensor:
        """Return `W A^T c`, which the bias of a head gains when the eraser is folded into it."""
        return weight @ self.replies.to(weight).T @ self.constant.to(weight)

    def onto_varying_directions(self) -> Projector | None:
        """Return the projector onto the directions along which erased features vary, or None for all directions.

        Erased features are constant along v if `v = B^T A v`, that is `v = B^T u` with `A B^T u = u`.
        """
        A, B = (part.detach().double().cpu() for part in (self.replies, self.readings))
        _, values, vectors = torch.linalg.svd(A @ B.T - torch.eye(len(B), dtype=torch.float64))
        fixed = vectors[values < _ROUNDING]
        return Projector.from_directions((fixed @ B).to(self.readings)) if len(fixed) else None

    @property
    def rank(self) -> int:
        """Number k of readings."""
        return self.replies.shape[0]

    @property
    def num_features(self) -> int:
        """Width d of the features."""
        return self.replies.shape[1]

    def extra_repr(self) -> str:
        """Return width and rank for `print(eraser)`."""
        return f"num_features={self.num_features}, rank={self.rank}"
