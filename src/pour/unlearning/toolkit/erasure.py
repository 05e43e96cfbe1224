"""The steps that the two forms of LEACE share: fit an eraser on all images, and put it in front of the head."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.geometry.leace import LeaceFitter
from pour.models.head import find_head
from pour.models.projecting.project import project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.unlearning.contract import Method
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.request import Need
from pour.unlearning.toolkit.features import feature_rows

if TYPE_CHECKING:
    from torch import nn

    from pour.geometry.eraser import Eraser
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Erasure"]


@dataclass(kw_only=True)
class Erasure(Method):
    """Fit an eraser on forget and retained images, and put it in front of the head."""

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
            for features, labels in feature_rows(model, head, images.once(run), run):
                fitter.update(features, labels[:, None] == wanted)
        return project(model, self._eraser(fitter), classes=classes, forgotten_logit=self.forgotten_logit)

    @abstractmethod
    def _eraser(self, fitter: LeaceFitter) -> Eraser:
        """Return the eraser of the form."""
