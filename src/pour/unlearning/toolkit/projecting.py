"""The bases of methods that put a projector or an eraser in front of the head."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from pour.geometry.leace import LeaceFitter
from pour.models.head import find_head
from pour.models.projecting.project import project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.unlearning.contract import Method, option
from pour.unlearning.forget_only import requested_classes
from pour.unlearning.request import Need
from pour.unlearning.toolkit.features import feature_rows

if TYPE_CHECKING:
    from torch import nn

    from pour.geometry.eraser import Eraser
    from pour.geometry.projector import Projector
    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["Erasure", "ProjectingMethod"]


@dataclass(kw_only=True)
class ProjectingMethod(Method):
    """A method in closed form that only changes the features in front of the head."""

    forgotten_logit: ForgottenLogit = option(
        "keep", "Score of a forgotten class: keep, mask (never predicted) or zero."
    )

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Put the projector or eraser of the method in front of the head of `model`."""
        head = find_head(model)
        classes = requested_classes(model, request)
        removal = self.removal(model, head, classes, request, run)
        return project(model, removal, place=head, classes=classes, forgotten_logit=self.forgotten_logit)

    @abstractmethod
    def removal(
        self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run
    ) -> Projector | Eraser:
        """Return the map of the features that removes `classes`."""


@dataclass(kw_only=True)
class Erasure(ProjectingMethod):
    """Base of the two forms of LEACE: fit an eraser on forget and retained images."""

    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain")
    cost: ClassVar[str] = "one pass over all training images"

    def removal(
        self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run
    ) -> Projector | Eraser:
        """Return the eraser, fitted on forget and retained images."""
        fitter = LeaceFitter(head.num_features, len(classes))
        for images in (request.forget, request.retain):
            for features, labels in feature_rows(model, head, images.once(run), run):
                fitter.update(features, torch.stack([labels == label for label in classes], dim=1))
        return self.eraser(fitter)

    @abstractmethod
    def eraser(self, fitter: LeaceFitter) -> Eraser:
        """Return the eraser of the form."""
