"""LEACE: the smallest change of the features after which no linear classifier recognises the class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.unlearning.contract import option
from pour.unlearning.registry import register
from pour.unlearning.toolkit.projecting import Erasure

if TYPE_CHECKING:
    from pour.geometry.eraser import Eraser
    from pour.geometry.leace import LeaceFitter

__all__ = ["Leace"]


@register
@dataclass(kw_only=True)
class Leace(Erasure):
    """Remove all linear information about the classes from the features by the smallest change; closed form.

    E(x) = x - S^{1/2} Pi S^{-1/2} (x - mean). Here S = Cov(x), y are the indicators of the forgotten classes, and Pi is
    the projector on the columns of S^{-1/2} Cov(x, y). For one class Pi has rank 1, and every linear classifier of the
    class is constant on the fitted data. Shrinkage, the smallest signal (0.01) and the bound on total variance are as
    published. The encoder does not change.
    """

    name: ClassVar[str] = "leace"
    paper: ClassVar[str] = "LEACE (Belrose et al., NeurIPS 2023)"

    shrinkage: bool = option(True, "Shrink the covariance towards a multiple of the identity, better for few images.")

    def eraser(self, fitter: LeaceFitter) -> Eraser:
        """Return the eraser of the smallest change."""
        return fitter.eraser(shrinkage=self.shrinkage)
