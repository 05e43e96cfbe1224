"""The projector of the paper: features without their component along given directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.geometry._inputs import as_double, check_directions, check_features, without_autocast

__all__ = ["Projector"]


class Projector(nn.Module):
    r"""Remove from features everything that lies in the span of an orthonormal basis.

    For a basis Q of k orthonormal rows the projector is $P = I - Q^\top Q$, and

    $$
    P z = z - Q^\top (Q z).
    $$

    With one row, Q = v_u, this is the paper's $P = I - v_u v_u^\top$. On a simplex ETF of C classes, removing
    k <= C - 2 vertices leaves the others with squared norm C (C-k-1) / ((C-1) (C-k)) and inner products
    -C / ((C-1) (C-k)). Normalised, they are a simplex ETF of C - k classes. All retained scores of a sample shift by
    the same number, so that decisions between retained classes do not change.

    The projected features of the forgotten class reach the origin only if their spread sigma is 0. With a head of norm
    kappa, their scores have the size kappa * sigma, so predictions become uniform as kappa * sigma -> 0.

    Args:
        basis: `(k, d)` orthonormal rows, 1 <= k < d. For directions of any scale and angle, use
            `from_directions`.

    Shape:
        `(..., d)` to `(..., d)`; with `dim` the features may lie along any dimension, as in `(N, d, H, W)`.

    Examples:
        >>> import torch
        >>> from pour.geometry import Projector
        >>> forget = Projector.from_directions(torch.tensor([3.0, 0.0, 0.0]))
        >>> forget(torch.tensor([[5.0, 1.0, 2.0]]))
        tensor([[0., 1., 2.]])
    """

    basis: Tensor

    def __init__(self, basis: Tensor) -> None:
        super().__init__()
        check_directions(basis, "basis")
        rank, width = basis.shape
        if rank >= width:
            raise UsageError(f"A basis of {rank} rows spans all {width} dimensions; nothing would be left.")
        gram = as_double(basis) @ as_double(basis).T
        error = float((gram - torch.eye(rank, dtype=gram.dtype, device=gram.device)).abs().max())
        if error > max(4 * torch.finfo(basis.dtype).eps, 1e-5):
            raise UsageError(
                f"The rows of basis are not orthonormal (off by {error:.2g}); use Projector.from_directions."
            )
        self.register_buffer("basis", basis.detach().clone())

    @classmethod
    def from_directions(cls, directions: Tensor, *, rtol: float | None = None) -> Projector:
        """Return the projector that removes the span of `directions`.

        The rows may have any scale and may be linearly dependent: each is normalised, and the rank is the number of
        singular values (in float64) above `rtol` times the largest.

        Args:
            directions: `(k, d)`, or `(d,)` for one direction; the result has its dtype and device.
            rtol: Tolerance of the rank, by default `max(k, d) * eps` of the dtype of `directions`, at most 1e-2.

        Raises:
            UsageError: A row is zero or not finite, or the directions span the whole space.
        """
        rows = directions.unsqueeze(0) if directions.ndim == 1 else directions
        check_directions(rows, "directions")
        rtol = min(max(rows.shape) * torch.finfo(rows.dtype).eps, 1e-2) if rtol is None else rtol
        if not 0 <= rtol < 1:
            raise UsageError(f"rtol is {rtol}; expected a number in [0, 1).")

        double = as_double(rows).cpu()
        # Dividing by the largest entry first keeps the norms of very long or very short rows from overflowing.
        double = double / double.abs().amax(dim=1, keepdim=True)
        double = double / torch.linalg.vector_norm(double, dim=1, keepdim=True)
        _, values, right = torch.linalg.svd(double, full_matrices=False)
        basis = right[values > rtol * values[0]]
        if len(basis) == rows.shape[1]:
            problem = f"The {len(rows)} directions span all {rows.shape[1]} dimensions"
            raise UsageError(f"{problem}; nothing would be left. Remove fewer directions.")
        return cls(basis.to(dtype=rows.dtype, device=rows.device))

    def forward(self, features: Tensor, *, dim: int = -1) -> Tensor:
        """Return `P z` for `features` z, whose dimension `dim` has the size d; dtype, device and shape stay."""
        check_features(features, dim, self.num_features, "projector")
        with without_autocast(features.device):
            Q = self.basis.to(dtype=features.dtype, device=features.device)
            # (z Q^T) Q costs 2 k d per row; Q^T Q first would cost d^2 and a d x d matrix.
            return features - (features.movedim(dim, -1) @ Q.T @ Q).movedim(-1, dim)

    def fold(self, weight: Tensor) -> Tensor:
        """Return `W P = W - (W Q^T) Q` for the `(C, d)` weight W of a head, so that `(W P) z = W (P z)`.

        Half-precision weights are projected in float32 and rounded once.
        """
        if weight.ndim != 2 or weight.shape[1] != self.num_features:
            raise UsageError(f"weight has shape {tuple(weight.shape)}; expected (classes, {self.num_features}).")
        if not weight.is_floating_point():
            raise UsageError(f"weight has dtype {weight.dtype}; convert it to a floating-point dtype.")
        W = weight.to(torch.promote_types(weight.dtype, torch.float32))
        Q = self.basis.to(dtype=W.dtype, device=W.device)
        # One fused step, because each pass over the weight of a large head costs as much as the product.
        return torch.addmm(W, W @ Q.T, Q, alpha=-1).to(weight.dtype)

    def then(self, later: Projector) -> Projector:
        """Return the projector that removes the spans of this projector and of `later`. The order does not matter."""
        if later.num_features != self.num_features:
            raise UsageError(
                f"A projector of width {self.num_features} cannot be followed by one of width {later.num_features}."
            )
        dtype = torch.promote_types(self.basis.dtype, later.basis.dtype)
        both = [self.basis.to(dtype), later.basis.to(dtype=dtype, device=self.basis.device)]
        return Projector.from_directions(torch.cat(both))

    @property
    def P(self) -> Tensor:  # noqa: N802
        """The d x d matrix `I - Q^T Q`, computed at each call."""
        identity = torch.eye(self.num_features, dtype=self.basis.dtype, device=self.basis.device)
        return identity - self.basis.T @ self.basis

    @property
    def rank(self) -> int:
        """Number k of dimensions that are removed."""
        return self.basis.shape[0]

    @property
    def num_features(self) -> int:
        """Width d of the features."""
        return self.basis.shape[1]

    def extra_repr(self) -> str:
        """Return width and rank for `print(projector)`."""
        return f"num_features={self.num_features}, rank={self.rank}"
