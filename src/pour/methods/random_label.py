"""Random label: train on a random label for every forget image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from pour.errors import warn
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import classification_loss
from pour.unlearning.contract import option
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, forgotten_classes
from pour.unlearning.registry import register

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["RandomLabel"]


@register
@dataclass(kw_only=True)
class RandomLabel(ForgetOnlyMethod):
    """Train on forget images with random labels, drawn once per image before training.

    The loss is CE(l(x_i), r_i) with r_i uniform over all C classes, the true class included. This is the variant of
    POUR and DELETE, with the defaults of DELETE's code. A model that fits these labels has an accuracy of about 1/C on
    the forget images, unless `different` is set. Without retained images the method only works at small rates.
    """

    name: ClassVar[str] = "random-label"
    paper: ClassVar[str] = "Amnesiac (Graves et al., AAAI 2021), forget-only as in DELETE (CVPR 2025)"
    several_heads: ClassVar[bool] = True

    different: bool = option(False, "Draw the labels from the retained classes alone, so never the true label.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Draw the labels and train on them."""
        # A class that an earlier request removed must not be taught again as a wrong answer.
        excluded = forgotten_classes(model, request) if self.different else forgotten_before(model)
        answers = np.array([label for label in range(find_head(model).num_classes) if label not in excluded])
        if request.forget.labels is not None:
            drawn = np.random.default_rng(run.seed).choice(answers, size=len(request.forget.labels))
            batches = self.loaders(run, request.forget.relabelled(drawn))[0]
            self.train_on_forget(model, classification_loss, request, run, batches=batches)
        else:
            warn(
                "random-label cannot identify the images of your own batches, so it draws their random labels again in "
                "every batch; pass a split (ImageSplit) to keep one label per image."
            )
            choices = torch.as_tensor(answers, device=run.torch_device)

            def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
                # The position of the largest of uniform draws is uniform; torch.multinomial would make the host wait.
                draws = torch.rand(len(labels), len(choices), device=labels.device)
                return F.cross_entropy(scores_of(student(to_unit(images))), choices[draws.argmax(dim=1)])

            self.train_on_forget(model, objective, request, run)
        run.log(run.steps, forget_accuracy=forget_accuracy(model, request, run))
        return model
