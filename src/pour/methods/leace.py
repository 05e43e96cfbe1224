"""LEACE and its orthogonal form: no linear classifier finds the class in what the head sees."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.geometry.leace import LeaceFitter
from pour.methods.contract import Method, register
from pour.methods.forget_only import requested_classes
from pour.methods.front import put_in_front, seen_features
from pour.methods.request import Need
from pour.models.head import find_head
from pour.models.projected import ForgottenLogit

if TYPE_CHECKING:
    from torch import nn

    from pour.geometry.eraser import Eraser
    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["Leace", "LeaceOrth"]


@dataclass(kw_only=True)
class _Erasure(Method):
    """What both forms share."""

    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "one pass over all training images"

    forgotten_logit: ForgottenLogit = "keep"
    """The forgotten class's own score: mask (never predicted), keep or zero."""

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Fit the eraser on forget and retained images, and put it in front of the head."""
        classes = requested_classes(model, request)
        head = find_head(model)
        fitter = LeaceFitter(head.num_features, len(classes))
        wanted = torch.tensor(classes, device=run.torch_device)
        for images in (request.forget, request.retain):
            for features, labels in seen_features(model, head, images.once(run), run):
                fitter.update(features, labels[:, None] == wanted)
        return put_in_front(model, self._eraser(fitter), classes, self.forgotten_logit)

    @abstractmethod
    def _eraser(self, fitter: LeaceFitter) -> Eraser:
        """The form's eraser."""


@register
@dataclass(kw_only=True)
class Leace(_Erasure):
    """Erase all linear trace of the classes from the features with the smallest change; closed form.

    E(x) = x - S^{1/2} Pi S^{-1/2} (x - mean), S = Cov(x), Pi the projector on the columns of S^{-1/2} Cov(x, y), y the
    indicators of the forgotten classes. Rank 1 for one class: every linear classifier of it is then constant on the
    fitted data. Shrinkage, the smallest signal (0.01) and the bound on total variance as published. The encoder stays.
    """

    name: ClassVar[str] = "leace"
    paper: ClassVar[str] = "LEACE (Belrose et al., NeurIPS 2023)"

    shrinkage: bool = True
    """Shrink the covariance towards a multiple of the identity, which is steadier where images are few."""

    def _eraser(self, fitter: LeaceFitter) -> Eraser:
        return fitter.eraser(shrinkage=self.shrinkage)


@register
@dataclass(kw_only=True)
class LeaceOrth(_Erasure):
    """LEACE by an orthogonal projection: remove the difference between the class's mean and the others'; closed form.

    E(x) = x - V V^T (x - mean), V an orthonormal basis of Cov(x, y), which for one class is along mu_u - mu_rest. On a
    collapsed model that is the head's row, and POUR-P, LEACE and this agree; their gap measures the distance to it.
    """

    name: ClassVar[str] = "leace-orth"
    paper: ClassVar[str] = "LEACE (Belrose et al., NeurIPS 2023), orthogonal form"

    def _eraser(self, fitter: LeaceFitter) -> Eraser:
        return fitter.eraser(orthogonal=True)
