"""A head with a projector in front of it, and the scores of its forgotten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor, nn

from pour.errors import UsageError, check_choice
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ForgottenLogit",
    "ProjectedHead",
    "is_affine",
    "is_head_layer",
    "is_masked",
    "masked_score",
    "projector_of_state",
]

ForgottenLogit = Literal["mask", "keep", "zero"]
"""Score of a forgotten class: so low that it is never predicted, ``W P z + b``, or 0."""


def is_head_layer(module: nn.Module) -> bool:
    """Return whether ``module`` is a linear map of features: ``nn.Linear``, or an ungrouped 1x1 ``nn.Conv2d``."""
    if isinstance(module, nn.Linear):
        return True
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and module.stride == (1, 1)
        and module.padding in ((0, 0), "valid", "same")
        and module.groups == 1
    )


@torch.no_grad()
def is_affine(layer: nn.Linear | nn.Conv2d) -> bool:
    """Return whether ``layer`` computes ``W z + b``, which a subclass such as a cosine classifier does not."""
    if type(layer).forward in (nn.Linear.forward, nn.Conv2d.forward):
        return True
    weight = layer.weight.flatten(1)
    z = torch.linspace(-1, 2, weight.shape[1], dtype=weight.dtype, device=weight.device).unsqueeze(0)
    scores: Tensor = layer(z if isinstance(layer, nn.Linear) else z[:, :, None, None])
    expected = nn.functional.linear(z, weight, layer.bias)
    # A GPU may round the features to the ten bits of TF32.
    tolerance = max(1e-3, 8 * torch.finfo(weight.dtype).eps)
    return torch.allclose(scores.flatten(1), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def masked_score(dtype: torch.dtype) -> float:
    """Return the score of a masked class: half of the dtype's lowest number, but not below -1e15.

    Softmax turns it into an exact 0. Squares of it, and sums over a data set, are still finite.

    Example:
        >>> masked_score(torch.float32), masked_score(torch.float16)
        (-1000000000000000.0, -32752.0)
    """
    return max(torch.finfo(dtype).min / 2, -1e15)


def is_masked(bias: Tensor) -> Tensor:
    """Return which classes are masked in a folded head, by their biases (C,), which training may have moved a little.

    Example:
        >>> is_masked(torch.tensor([0.5, masked_score(torch.float32), -3.0]))
        tensor([False,  True, False])
    """
    return bias < masked_score(bias.dtype) / 2


def projector_of_state(state: Mapping[str, Tensor], head: str) -> Projector | Eraser:
    """Return the projector or eraser that a state dict contains for the head called ``head``.

    Raises:
        KeyError: The state dict contains none.
    """
    prefix = f"{head}.projector." if head else "projector."
    if f"{prefix}readings" in state:
        return Eraser(*(state[prefix + part] for part in ("replies", "readings", "constant")))
    return Projector(state[f"{prefix}basis"])


class ProjectedHead(nn.Module):
    """``scores = W P z + b`` with ``P z = z - (z Q^T) Q``: the projector, then the untouched head (the paper's POUR-P).

    Features (..., d) for a linear head or (N, d, H, W) for a 1x1 convolution in, scores of the head's shape out.

    Args:
        head: ``nn.Linear``, or ``nn.Conv2d`` with 1x1 kernels.
        projector: Projector, or another affine map (eraser), on features of the head's width.
        forgotten: Indices of the forgotten classes; empty for a concept that is no class.
        forgotten_logit: Scores of these classes.

    Example:
        >>> from pour.geometry.projector import Projector
        >>> head = nn.Linear(4, 3)
        >>> layer = ProjectedHead(head, Projector.from_directions(head.weight.detach()[0]), forgotten=[0])
        >>> bool(layer(torch.randn(5, 4)).argmax(dim=1).eq(0).any())
        False
    """

    forgotten_mask: Tensor

    def __init__(
        self,
        head: nn.Module,
        projector: Projector | Eraser,
        *,
        forgotten: Sequence[int] = (),
        forgotten_logit: ForgottenLogit = "mask",
    ) -> None:
        super().__init__()
        if not isinstance(head, nn.Linear | nn.Conv2d) or not is_head_layer(head):
            raise UsageError(f"A head must be nn.Linear or a 1x1 nn.Conv2d without groups, not {head}.")
        check_choice("forgotten_logit", forgotten_logit, get_args(ForgottenLogit))
        self.projector: Projector | Eraser = projector
        self.head: nn.Linear | nn.Conv2d = head
        self.forgotten = tuple(sorted(forgotten))
        self.forgotten_logit: ForgottenLogit = forgotten_logit
        self.dim = -1 if isinstance(head, nn.Linear) else 1
        if projector.num_features != self.in_features:
            raise UsageError(
                f"The projector works on {projector.num_features} features, but the head takes {self.in_features}."
            )
        mask = torch.zeros(self.out_features, dtype=torch.bool, device=head.weight.device)
        mask[list(self.forgotten)] = True
        self.register_buffer("forgotten_mask", mask if self.dim == -1 else mask.view(-1, 1, 1), persistent=False)

    @property
    def layer(self) -> nn.Linear | nn.Conv2d:
        """Head behind the projector."""
        return self.head

    @property
    def weight(self) -> Tensor:
        """``W P``, for a model that computes its scores from the weight instead of calling its head."""
        weight = self.head.weight
        folded = self.projector.fold(weight.flatten(1).to(self._precise)).to(weight.dtype)
        if self._replaced:
            folded = folded.masked_fill(self.forgotten_mask.view(-1, 1), 0)
        return folded.view_as(weight)

    @property
    def bias(self) -> Tensor | None:
        """Bias that belongs to :attr:`weight`, or None if nothing is added."""
        weight, bias = self.head.weight, self.head.bias
        if isinstance(self.projector, Eraser):
            offset = self.projector.offset(weight.flatten(1).to(self._precise)).to(weight.dtype)
            bias = offset if bias is None else bias + offset
        if not self._replaced:
            return bias
        bias = weight.new_zeros(self.out_features) if bias is None else bias
        return bias.masked_fill(self.forgotten_mask.view(-1), self._forgotten_score(bias.dtype))

    @property
    def _precise(self) -> torch.dtype:
        return next(self.projector.buffers()).dtype

    @property
    def _replaced(self) -> bool:
        """Whether forgotten classes have another score than ``W P z + b``."""
        return self.forgotten_logit != "keep" and bool(self.forgotten)

    def _forgotten_score(self, dtype: torch.dtype) -> float:
        return 0.0 if self.forgotten_logit == "zero" else masked_score(dtype)

    @property
    def in_features(self) -> int:
        """Width d of the features."""
        return int(self.head.weight.shape[1])

    @property
    def out_features(self) -> int:
        """Number of classes."""
        return int(self.head.weight.shape[0])

    def forward(self, features: Tensor) -> Tensor:
        """Compute the scores ``W P z + b`` of ``features`` z."""
        scores: Tensor = self.head(self.projector(features, dim=self.dim))
        if not self._replaced:
            return scores
        return scores.masked_fill(self.forgotten_mask, self._forgotten_score(scores.dtype))

    def extra_repr(self) -> str:
        """Return the request for ``print(model)``."""
        return f"forgotten={list(self.forgotten)}, forgotten_logit={self.forgotten_logit!r}"
