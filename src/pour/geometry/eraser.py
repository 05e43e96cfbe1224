"""The eraser: an affine map of low rank that takes a concept out of features."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry._inputs import as_double
from pour.geometry.projector import Projector

# Below it a direction is one that nothing is left of; readings and replies may be rounded to single precision.
_FIXED = 1e-4

__all__ = ["Eraser"]


class Eraser(nn.Module):
    r"""Take out of features what ``k`` linear readings say about a concept, keeping a constant in its place.

    .. math:: E(z) = z - A^\top (B z - c)

    with readings B, replies A (both k x d) and a constant c of length k, taken in the cheap order. LEACE is of this
    form with :math:`A^\top B = \Sigma^{1/2} \Pi \Sigma^{-1/2}` and c = B mean(z); a :class:`Projector` is A = B = Q,
    c = 0. Erasers follow each other as erasers.

    Args:
        replies: A, ``(k, d)``: what is subtracted for each reading.
        readings: B, ``(k, d)``.
        constant: c, ``(k,)``: the value of each reading at which nothing is subtracted.

    Example:
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
        """The eraser that does what ``projector`` does."""
        return cls(projector.basis, projector.basis, torch.zeros_like(projector.basis[:, 0]))

    @classmethod
    def onto(cls, rows: Tensor, offsets: Tensor) -> Eraser:
        r"""The orthogonal projection onto the affine subspace :math:`\{z : V z + \beta = 0\}`.

        Of all maps that end there, it moves each z the least.

        Args:
            rows: V, ``(k, d)``, linearly independent.
            offsets: beta, ``(k,)``.

        Example:
            >>> Eraser.onto(torch.tensor([[2.0, 0.0]]), torch.tensor([-6.0]))(torch.tensor([1.0, 5.0]))
            tensor([3., 5.])
        """
        basis, factor = torch.linalg.qr(as_double(rows).T)
        size = factor.diagonal().abs()
        if rows.shape[0] > rows.shape[1] or bool((size <= 1e-10 * size.max()).any()):
            raise UsageError("The rows of an affine subspace must be linearly independent.")
        level = torch.linalg.solve_triangular(factor.T, -as_double(offsets).unsqueeze(1), upper=False).squeeze(1)
        return cls(basis.T, basis.T, level).to(rows.dtype)

    @classmethod
    def after(cls, first: Eraser | Projector, second: Eraser | Projector) -> Eraser | Projector:
        """What ``first`` and then ``second`` do; of two projectors the one on what both leave."""
        if isinstance(first, Projector) and isinstance(second, Projector):
            return first.then(second)
        return (first if isinstance(first, Eraser) else cls.of(first)).then(second)

    def forward(self, features: Tensor, *, dim: int = -1) -> Tensor:
        """Erase from ``features``, whose dimension ``dim`` has the size d; keep their dtype, device and shape."""
        if features.shape[dim] != self.num_features:
            raise UsageError(
                f"features have width {features.shape[dim]} in dimension {dim}, the eraser was made for "
                f"{self.num_features}; pass features of that width, or another dim."
            )
        if torch.is_autocast_enabled(features.device.type):
            # As with a projector: rounded products would leave part of what is to be removed.
            with torch.autocast(features.device.type, enabled=False):
                return self._erase(features, dim)
        return self._erase(features, dim)

    def _erase(self, features: Tensor, dim: int) -> Tensor:
        replies, readings, constant = (
            part.to(dtype=features.dtype, device=features.device)
            for part in (self.replies, self.readings, self.constant)
        )
        read = features.movedim(dim, -1) @ readings.T - constant
        return features - (read @ replies).movedim(-1, dim)

    def then(self, later: Eraser | Projector) -> Eraser:
        """The one eraser that does what this one and after it a ``later`` one do."""
        if isinstance(later, Projector):
            later = Eraser.of(later)
        if later.num_features != self.num_features:
            raise UsageError(
                f"An eraser of width {self.num_features} cannot be followed by one of width {later.num_features}."
            )
        dtype = torch.promote_types(self.replies.dtype, later.replies.dtype)
        replies, readings, constant = (as_double(part) for part in (self.replies, self.readings, self.constant))
        next_replies, next_readings, next_constant = (
            as_double(part).to(replies.device) for part in (later.replies, later.readings, later.constant)
        )
        # What the later one reads has already lost what this one subtracted.
        lost = next_readings @ replies.T
        return Eraser(
            torch.cat([replies, next_replies]),
            torch.cat([readings, next_readings - lost @ readings]),
            torch.cat([constant, next_constant - lost @ constant]),
        ).to(device=self.replies.device, dtype=dtype)

    def fold(self, weight: Tensor) -> Tensor:
        """Give ``W - (W A^T) B`` for a head's ``(C, d)`` weight; :meth:`offset` goes with it."""
        return weight - (weight @ self.replies.to(weight).T) @ self.readings.to(weight)

    def offset(self, weight: Tensor) -> Tensor:
        """Give ``W A^T c``, what the head's bias gains when the eraser is folded into it."""
        return weight @ self.replies.to(weight).T @ self.constant.to(weight)

    def constant_directions(self) -> Projector | None:
        """The projector onto what still varies in erased features; None where they vary in every direction.

        Along v erased features are constant where v = R^T A v (A the replies, R the readings), so v = R^T u for a u
        that A R^T leaves as it is.
        """
        replies, readings = (part.detach().double().cpu() for part in (self.replies, self.readings))
        moved = replies @ readings.T - torch.eye(len(readings), dtype=torch.float64)
        _, sizes, rows = torch.linalg.svd(moved)
        fixed = rows[sizes < _FIXED]
        return Projector.from_directions((fixed @ readings).to(self.readings)) if len(fixed) else None

    @property
    def rank(self) -> int:
        """The number k of readings."""
        return self.replies.shape[0]

    @property
    def num_features(self) -> int:
        """The width d of the features."""
        return self.replies.shape[1]

    def extra_repr(self) -> str:
        """Say what is removed from what."""
        return f"num_features={self.num_features}, rank={self.rank}"
