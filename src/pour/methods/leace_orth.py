"""The orthogonal form of LEACE: project out the difference of the class's mean from the other classes' mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.unlearning.registry import register
from pour.unlearning.toolkit.projecting import Erasure

if TYPE_CHECKING:
    from pour.geometry.eraser import Eraser
    from pour.geometry.leace import LeaceFitter

__all__ = ["LeaceOrth"]


@register
@dataclass(kw_only=True)
class LeaceOrth(Erasure):
    """Remove the difference between the class's mean and the mean of the other classes; closed form.

    E(x) = x - V V^T (x - mean) is LEACE by an orthogonal projection. V is an orthonormal basis of Cov(x, y), which for
    one class is along mu_u - mu_rest. On a collapsed model this is the head's row, so POUR-P, LEACE and this method
    agree. Their difference measures how far a model is from collapse.
    """

    name: ClassVar[str] = "leace-orth"
    paper: ClassVar[str] = "LEACE (Belrose et al., NeurIPS 2023), orthogonal form"

    def eraser(self, fitter: LeaceFitter) -> Eraser:
        """Return the orthogonal eraser."""
        return fitter.eraser(orthogonal=True)
