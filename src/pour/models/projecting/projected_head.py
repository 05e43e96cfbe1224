"""A head with a projector in front of it, and the scores of its forgotten classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from pour.errors import UsageError, check_choice, warn
from pour.geometry.eraser import Eraser
from pour.geometry.projector import Projector
from pour.models.linear_form import linear_form

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "ForgottenLogit",
    "ProjectedHead",
    "is_head_layer",
    "is_masked",
    "masked_score",
    "projector_of_state",
]

ForgottenLogit = Literal["mask", "keep", "zero"]
"""Score of a forgotten class: so low that it is never predicted, `W P z + b`, or 0."""


def is_head_layer(module: nn.Module) -> bool:
    """Return whether `module` is a linear map of features: `nn.Linear`, or an ungrouped 1x1 `nn.Conv2d`."""
    if isinstance(module, nn.Linear):
        return True
    return (
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and module.stride == (1, 1)
        and module.padding in ((0, 0), "valid", "same")
        and module.groups == 1
    )


def masked_score(dtype: torch.dtype) -> float:
    """Return the score of a masked class: half of the dtype's lowest number, but not below -1e15.

    Softmax turns it into an exact 0. Squares of it, and sums over a data set, are still finite.

    Examples:
        >>> masked_score(torch.float32), masked_score(torch.float16)
        (-1000000000000000.0, -32752.0)
    """
    return max(torch.finfo(dtype).min / 2, -1e15)


def is_masked(bias: Tensor) -> Tensor:
    """Return for each class of a folded head whether it is masked, from the biases (C,).

    Training may have changed the biases a little.

    Examples:
        >>> is_masked(torch.tensor([0.5, masked_score(torch.float32), -3.0]))
        tensor([False,  True, False])
    """
    return bias < masked_score(bias.dtype) / 2


def projector_of_state(state: Mapping[str, Tensor], head: str) -> Projector | Eraser:
    """Return the projector or eraser that a state dict contains for the head called `head`.

    Raises:
        KeyError: The state dict contains none.
    """
    prefix = f"{head}.projector." if head else "projector."
    if f"{prefix}readings" in state:
        return Eraser(*(state[prefix + part] for part in ("replies", "readings", "constant")))
    return Projector(state[f"{prefix}basis"])


class ProjectedHead(nn.Module):
    """`scores = W P z + b` with `P z = z - (z Q^T) Q`: the projector, then the unchanged head (the paper's POUR-P).

    It takes features (..., d) for a linear head or (N, d, H, W) for a 1x1 convolution, and returns the head's scores. A
    cosine head gets the projected features before it normalises them: `s cos(P z, w)`.

    Args:
        head: `nn.Linear`, `nn.Conv2d` with 1x1 kernels, or a module that computes the same or cosines.
        projector: Projector, or another affine map (eraser), on features of the head's width.
        forgotten: Indices of the forgotten classes; empty for a concept that is no class.
        forgotten_logit: Scores of these classes.

    Examples:
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
        form = None if is_head_layer(head) else linear_form(head)
        if not is_head_layer(head) and form is None:
            raise UsageError(f"A head must be nn.Linear, a 1x1 nn.Conv2d without groups or a cosine head, not {head}.")
        check_choice("forgotten_logit", forgotten_logit, get_args(ForgottenLogit))
        self.projector: Projector | Eraser = projector
        self.head: Any = head
        self.forgotten = tuple(sorted(forgotten))
        self.forgotten_logit: ForgottenLogit = forgotten_logit
        self.dim = 1 if isinstance(head, nn.Conv2d) else -1
        rows: Any = self.head.weight if form is None else form.rows
        self.out_features, self.in_features = int(rows.shape[0]), int(rows.shape[1])
        if projector.num_features != self.in_features:
            raise UsageError(
                f"The projector works on {projector.num_features} features, but the head takes {self.in_features}."
            )
        mask = torch.zeros(self.out_features, dtype=torch.bool, device=next(head.parameters()).device)
        mask[list(self.forgotten)] = True
        # Reading the gradient makes the host wait for the GPU, so only the first loss is checked.
        self._is_loss_checked = False
        self.register_buffer("forgotten_mask", mask if self.dim == -1 else mask.view(-1, 1, 1), persistent=False)

    @property
    def layer(self) -> nn.Module:
        """Head behind the projector."""
        layer: nn.Module = self.head
        return layer

    @property
    def weight(self) -> Tensor:
        """`W P` of a linear head, for a model that uses the weight instead of calling its head."""
        weight: Tensor = self.head.weight
        folded = self.projector.fold(weight.flatten(1).to(self._precise)).to(weight.dtype)
        if self._replaced:
            folded = folded.masked_fill(self.forgotten_mask.view(-1, 1), 0)
        return folded.view_as(weight)

    @property
    def bias(self) -> Tensor | None:
        """Bias that belongs to `weight`, or None if nothing is added."""
        weight: Tensor = self.head.weight
        bias: Tensor | None = self.head.bias
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
        """Whether forgotten classes have another score than `W P z + b`."""
        return self.forgotten_logit != "keep" and bool(self.forgotten)

    def _forgotten_score(self, dtype: torch.dtype) -> float:
        return 0.0 if self.forgotten_logit == "zero" else masked_score(dtype)

    def forward(self, features: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Compute the scores `W P z + b` of `features` z. Further arguments are passed to the head."""
        scores: Tensor = self.head(self.projector(features, dim=self.dim), *args, **kwargs)
        if not self._replaced:
            return scores
        scores = scores.masked_fill(self.forgotten_mask, self._forgotten_score(scores.dtype))
        if self.training and scores.requires_grad and not (self._is_loss_checked or torch.compiler.is_compiling()):
            scores.register_hook(self._check_loss)  # type: ignore[no-untyped-call]
        return scores

    def _check_loss(self, gradient: Tensor) -> None:
        """Warn once if the loss depends on the scores of masked classes, as it does with label smoothing."""
        if self._is_loss_checked or (gradient.is_cuda and torch.cuda.is_current_stream_capturing()):
            return
        self._is_loss_checked = True
        try:
            is_read = bool(gradient.masked_fill(~self.forgotten_mask, 0).any())
        except RuntimeError:
            # A batched gradient of torch.func has no single value.
            return
        if is_read and self.forgotten_logit == "mask":
            warn(
                f"The loss reads the scores of forgotten classes ({', '.join(map(str, self.forgotten))}), which are "
                f"{masked_score(gradient.dtype):.4g}, as it does with label smoothing; leave these classes out of it: "
                "CrossEntropyLoss(weight=w) with w = 0 for them and 1 for the others."
            )

    def extra_repr(self) -> str:
        """Return the request for `print(model)`."""
        return f"forgotten={list(self.forgotten)}, forgotten_logit={self.forgotten_logit!r}"
