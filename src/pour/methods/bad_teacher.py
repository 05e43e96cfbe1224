"""Bad Teacher: learn ignorance from a random network, and everything else from the original."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.loop import as_epochs
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.batches import Together
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

    min KL(fresh || student) over D_f and KL(original || student) over a random ``retain_share`` of D_r, both at
    temperature 1, averaged over a batch that mixes the two kinds in proportion. The authors' values: Adam (here AdamW
    without weight decay, which is the same) at 1e-4, one epoch, batch 256, 30 % of the retained images. Their code also
    divides the loss by the number of classes, to which Adam is blind. BatchNorm is frozen: their loop leaves it as the
    evaluation before it did, and the mix holds more of the forgotten class than the data.
    """

    name: ClassVar[str] = "bad-teacher"
    paper: ClassVar[str] = "Bad Teacher (Chundawat et al., AAAI 2023)"
    needs: ClassVar[tuple[Need, ...]] = ("forget", "retain", "build")
    cost: ClassVar[str] = "1 epoch on forget images and 30 % of the retained, two teachers"

    retain_share: float = 0.3
    """The share of the retained images that is used, drawn once; of the user's own batches, that an epoch sees."""
    lr: float | None = 1e-4
    """The highest learning rate."""
    epochs: int | None = 1
    """Passes over the mixture; give these or steps."""
    batch_size: int = 256
    """Images to a step, of both kinds together."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """SGD with momentum, or AdamW."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.retain_share <= 1:
            raise UsageError(f"retain_share must be above 0 and at most 1, but is {self.retain_share}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Train ``model``, the student, between the two teachers."""
        competent = frozen_copy(model, run)
        incompetent = frozen_copy(fresh_model(model, request, run), run)
        shown = unmasked(model, run)

        def objective(student: nn.Module, gone: Tensor, _: Tensor, kept: Tensor, __: Tensor) -> Tensor:
            gone, kept = to_unit(gone), to_unit(kept)
            with torch.no_grad():
                target = torch.cat([scores_of(incompetent(gone)), scores_of(competent(kept))])
            return divergence(shown(target), shown(scores_of(student(torch.cat([gone, kept])))))

        self.train(model, self._mixture(request, run), objective, run)
        return model

    def _mixture(self, request: Granted, run: Run) -> Epochs:
        """Forget and retained batches side by side, in proportion where the numbers of images are known."""
        some = request.retain.part(self.retain_share, run)
        gone, kept = request.forget.count, some.count
        if gone is None or kept is None or self.batch_size < 2:
            forget_size = retain_size = self.batch_size
        else:
            forget_size = min(max(1, round(self.batch_size * gone / (gone + kept))), self.batch_size - 1)
            retain_size = self.batch_size - forget_size
        forget = as_epochs(request.forget.training(run, batch_size=forget_size, augment=self.augment, salt=1), run)
        retain = as_epochs(some.training(run, batch_size=retain_size, augment=self.augment), run)
        share = self.retain_share if some.own else 1.0
        return Together(forget, retain, length=max(len(forget), round(share * len(retain))))
