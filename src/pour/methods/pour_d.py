"""POUR-D: distil the projection into the encoder with forget images alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.projector import Projector
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.projecting.direction import head_removal, with_earlier
from pour.models.projecting.project import project
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import tap_features, to_unit
from pour.training.schedule import Schedule
from pour.unlearning.contract import option
from pour.unlearning.forget_only import ForgetOnlyMethod, forget_accuracy, requested_classes
from pour.unlearning.registry import register
from pour.unlearning.toolkit.distillation import MOST_LEFT, layer_factor, warn_of_class, warn_of_rise
from pour.unlearning.toolkit.features import all_features_of, class_rows, forgotten_rows, row_distances, row_mean
from pour.unlearning.toolkit.teachers import frozen_copy, frozen_head, without_dropout

if TYPE_CHECKING:
    from torch import nn

    from pour.geometry.eraser import Eraser
    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["PourD"]

# At this product of rate and initial loss, 400 steps forget without damage to the network.
_RATE_TIMES_LOSS = 2.4e-3
# A small initial loss would make the rate arbitrarily high. No higher rate was found to work.
_HIGHEST_RATE = 1e-3


@register
@dataclass(kw_only=True)
class PourD(ForgetOnlyMethod):
    """Train the encoder on forget images towards the projected features of the original; the head stays.

    On images of the forgotten classes the loss is |theta_s(x) - P theta(x)|^2. It is summed over features and averaged
    over the batch. theta is the original encoder, the teacher, and theta_s the encoder that is trained. Without
    `lr` the learning rate is 2.4e-3 / L0, at most 1e-3, with L0 the loss before the first step on the forget
    images. It rises over the first fifth of the steps, because the first gradients are the largest. A warning
    reports if more than 0.2 % of the un-augmented forget images are still classified as before.
    """

    name: ClassVar[str] = "pour-d"
    paper: ClassVar[str] = "POUR (Le et al., CVPR 2026)"
    cost: ClassVar[str] = "400 steps on forget images"
    pixelwise: ClassVar[bool] = True

    lr: float | None = option(None, "Highest learning rate; by default 2.4e-3 over the initial loss, at most 1e-3.")
    steps: int | None = option(400, "Number of optimisation steps; set these or epochs.")
    epochs: int | None = option(None, "Number of passes over the forget images; set these or steps.")
    schedule: Schedule = option(
        "one-cycle", "Course of the learning rate: one-cycle, cosine (for under 200 steps), step or constant."
    )
    direction: Literal["weights", "centered-weights", "scores", "decisions", "means", "given"] = option(
        "weights",
        "Direction to remove: of the head's rows as in pour-p, of the mean features, or the given directions.",
    )
    directions: Tensor | None = option(None, 'Directions to remove, (k, d), with direction="given".')
    layer_decay: float = option(
        1.0, "Factor between the learning rates of a layer and of the next layer.", above=0, most=1
    )
    other_pixels: Literal["project", "keep", "ignore"] = option(
        "project", "On scenes, target of the pixels of other classes: project (P theta), keep (theta) or ignore."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.direction == "given") != (self.directions is not None):
            raise UsageError('direction="given" and directions= (k x d) belong together; pass both or neither.')
        if self.directions is not None:
            self.directions = torch.as_tensor(self.directions)

    def options(self) -> dict[str, Any]:
        """Return the options by name, with the shape of given directions."""
        shape = None if self.directions is None else list(self.directions.shape)
        return {**super().options(), "directions": shape}

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Distil the projected original into `model`."""
        head = find_head(model)
        if isinstance(head.module, ProjectedHead):
            raise UsageError("pour-d trains the encoder of a plain model; fold the projected model first (pour.fold).")
        classes = requested_classes(model, request)
        projector = self._projector(model, head, classes, request, run).to(run.torch_device)
        teacher = frozen_copy(model, run)

        def loss_of(after: Tensor, before: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            """Return |theta_s(x) - P theta(x)|^2, averaged over the rows of the class, and the mask of these rows."""
            error = row_distances(after, projector(before, dim=head.dim), labels)
            rows = forgotten_rows(teacher, labels, classes, error.shape)
            loss = row_mean(error, rows)
            # The other rows, which only scenes have, together weigh as much as the rows of the class.
            if self.other_pixels == "project":
                loss = loss + row_mean(error, 1 - rows)
            elif self.other_pixels == "keep":
                loss = loss + row_mean(row_distances(after, before, labels), 1 - rows)
            return loss, rows

        total = count = class_rows_count = 0.0
        for before, labels in all_features_of(teacher, head, request.forget.once(run), run):
            loss, rows = loss_of(before, before, labels)
            total, count = total + loss.item() * len(labels), count + len(labels)
            class_rows_count += rows.sum().item()
        if not class_rows_count:
            raise UsageError("The forget images show no pixel of the forgotten classes; check the masks.")
        initial = total / count
        lr = self.lr if self.lr is not None else _RATE_TIMES_LOSS / max(initial, _RATE_TIMES_LOSS / _HIGHEST_RATE)
        run.log(0, initial_loss=initial, lr=lr)

        with (
            frozen_head(model),
            without_dropout(model),
            tap_features(model, head.name) as student_tap,
            tap_features(teacher, head.name) as teacher_tap,
        ):

            def features(student: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
                with torch.no_grad():
                    teacher(images)
                student(images)
                return student_tap.features.float(), teacher_tap.features.float()

            def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
                return loss_of(*features(student, to_unit(images)), labels)[0]

            def distance(student: nn.Module, copies: Tensor, labels: Tensor) -> Tensor:
                after, before = features(student, copies)
                return row_distances(after, projector(before, dim=head.dim), labels).mean()

            rates: dict[str, Any] = {"lr": lr, "lr_factor": layer_factor(model, self.layer_decay)}
            log = self.train_on_forget(model, objective, request, run, distance=distance, **rates)
        warn_of_rise([initial, *log.losses], lr)
        accuracy = forget_accuracy(model, request, run)
        run.log(run.steps, forget_accuracy=accuracy)
        if accuracy > MOST_LEFT:
            target = project(teacher, projector, classes=classes, forgotten_logit="keep")
            warn_of_class(accuracy, forget_accuracy(target, request, run))
        return model

    def _projector(
        self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run
    ) -> Projector | Eraser:
        """Return P."""
        if self.directions is not None:
            return Projector.from_directions(self.directions.float())
        if self.direction == "means":
            fitter = ProjectorFitter(classes=list(classes))
            for rows, labels in class_rows(model, head, request.forget.once(run), classes, run):
                fitter.update(rows, labels)
            return fitter.projector
        # Features must not show the classes of earlier requests either.
        earlier = forgotten_before(model)
        return head_removal(head, with_earlier(head, classes, earlier), self.direction, earlier=earlier)  # type: ignore[arg-type]
