"""Random label: teach a wrong answer for every forget image."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import classification_loss
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, requested_classes
from pour.unlearning.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["RandomLabel"]


@register
@dataclass(kw_only=True)
class RandomLabel(ForgetOnlyMethod):
    """Train on forget images with random labels, one drawn for each image before training and kept.

    The loss is CE(l(x_i), r_i) with r_i uniform over all C classes, the true one included (POUR's and DELETE's variant;
    defaults of DELETE's code). A model that fits these labels keeps an accuracy of about 1/C on the forget images:
    a floor of the method, which ``different`` removes. Without retained images it only works at small rates.
    """

    name: ClassVar[str] = "random-label"
    paper: ClassVar[str] = "Amnesiac (Graves et al., AAAI 2021), forget-only as in DELETE (CVPR 2025)"

    different: bool = False
    """Never draw the true label, nor another that is forgotten with it, but evenly from the rest."""

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Draw the labels and train on them."""
        num_classes = find_head(model).num_classes
        # A class that an earlier request took away must not be taught again as a wrong answer.
        gone = set(forgotten_before(model))
        if self.different:
            gone.update(requested_classes(model, request))
        answers = np.array([label for label in range(num_classes) if label not in gone])
        true = request.forget.labels
        if true is not None:
            drawn = np.random.default_rng(run.seed).choice(answers, size=len(true))
            images = request.forget.relabelled(drawn)
            batches = images.training(run, batch_size=self.batch_size, augment=self.augment)
            batches, loss = self.anchored(model, request, run, batches, classification_loss)
            self.train(model, batches, loss, run)
        else:
            warnings.warn(
                "random-label cannot tell the images of your own batches apart, so their random labels are drawn anew "
                "in every batch; pass a split (ImageSplit) to keep one label for each image.",
                stacklevel=3,
            )
            self._train_redrawn(model, request, run, torch.as_tensor(answers, device=run.torch_device))
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model

    def _train_redrawn(self, model: nn.Module, request: Granted, run: Run, answers: Tensor) -> None:
        def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            # The place of the largest of even draws is even itself; torch.multinomial would make the host wait.
            draws = torch.rand(len(labels), len(answers), device=labels.device)
            return F.cross_entropy(scores_of(student(to_unit(images))), answers[draws.argmax(dim=1)])

        batches = request.forget.training(run, batch_size=self.batch_size, augment=self.augment)
        batches, loss = self.anchored(model, request, run, batches, objective)
        self.train(model, batches, loss, run)
