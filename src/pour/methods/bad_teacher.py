"""Bad Teacher: match a random network on forget images, and the original on retained images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.unlearning.contract import option
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import side_by_side
from pour.unlearning.toolkit.teachers import divergence, fresh_model, frozen_copy, unmasked

if TYPE_CHECKING:
    from torch import nn

    from pour.training.loop import Epochs
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["BadTeacher"]


@register
@dataclass(kw_only=True)
class BadTeacher(IterativeMethod):
    """Match a freshly initialised network on forget images and the original on some retained images.

    The loss is KL(fresh || student) over D_f and KL(original || student) over a random `retain_share` of D_r. Both are
    at temperature 1 and averaged over a batch that mixes the two kinds in proportion. The authors' values are Adam
    (here AdamW without weight decay, which is the same) at 1e-4, one epoch, batch 256 and 30 % of the retained images.
    Their code also divides the loss by the number of classes, which does not change a step of Adam. BatchNorm is
    frozen: their loop keeps it in evaluation mode, and the forgotten class has a larger share of the mixture than of
    the data.
    """

    name: ClassVar[str] = "bad-teacher"
    paper: ClassVar[str] = "Bad Teacher (Chundawat et al., AAAI 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain", "build")
    cost: ClassVar[str] = "1 epoch on forget images and 30 % of the retained, two teachers"

    retain_share: float = option(
        0.3, "Share of the retained images, drawn once; of a user's batches, the share per epoch.", above=0, most=1
    )
    lr: float | None = 1e-4
    epochs: int | None = option(1, "Number of passes over the mixture; set these or steps.")
    batch_size: int = option(256, "Number of images per step, of both kinds together.")
    optimizer: Literal["sgd", "adamw"] = "adamw"

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train `model`, the student, between the two teachers."""
        competent = frozen_copy(model, run)
        incompetent = frozen_copy(fresh_model(model, request, run), run)
        without_masked = unmasked(model, run)

        def objective(
            student: nn.Module, forget_images: Tensor, _: Tensor, retain_images: Tensor, __: Tensor
        ) -> Tensor:
            forget_images, retain_images = to_unit(forget_images), to_unit(retain_images)
            with torch.no_grad():
                target = torch.cat([scores_of(incompetent(forget_images)), scores_of(competent(retain_images))])
            answers = scores_of(student(torch.cat([forget_images, retain_images])))
            return divergence(without_masked(target), without_masked(answers))

        self.train(model, self._mixture(request, run), objective, run)
        return model

    def _mixture(self, request: Granted, run: Run) -> Epochs:
        """Return pairs of a retained and a forget batch, in proportion if the numbers of images are known."""
        part = request.retain.part(self.retain_share, run)
        forget_count, retain_count = request.forget.count, part.count
        forget_size = retain_size = self.batch_size
        if forget_count is not None and retain_count is not None and self.batch_size > 1:
            share = forget_count / (forget_count + retain_count)
            forget_size = min(max(1, round(self.batch_size * share)), self.batch_size - 1)
            retain_size = self.batch_size - forget_size
        retain, forget = self.loaders(run, part, request.forget, sizes=(retain_size, forget_size))
        read = self.retain_share if part.from_user else 1.0
        return side_by_side(forget, retain, length=max(len(forget), round(read * len(retain))))
