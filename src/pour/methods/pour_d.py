"""POUR-D: the projection, distilled into the encoder with the forget set alone."""

from __future__ import annotations

import statistics
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch
from torch import Tensor

from pour.errors import UsageError
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.projector import Projector
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.projecting.direction import RowDirection, head_removal, with_earlier
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import extract_features, tap_features, to_unit
from pour.training.schedule import Schedule
from pour.unlearning.forget_only import forget_accuracy, requested_classes
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.anchored import AnchoredMethod
from pour.unlearning.toolkit.feature_maps import cell_distance, cell_means, forgotten_cells, maps_of
from pour.unlearning.toolkit.features import pool_features
from pour.unlearning.toolkit.teachers import frozen_copy, without_dropout

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import nn

    from pour.geometry.eraser import Eraser
    from pour.models.head import Head
    from pour.training.run import Run
    from pour.unlearning.request import Granted

__all__ = ["PourD"]

# The rate at which 400 steps forget without damage is inversely proportional to the size of what has to move.
_RATE_TIMES_LOSS = 2.4e-3
# Where little is left to remove, the rate would have no bound; no higher one was seen to hold.
_HIGHEST_RATE = 1e-3
_ACCEPTED_FORGET_ACCURACY = 0.002
_LOSSES_JUDGED = 10
# More than batches differ from each other.
_RISE = 1.2


@register
@dataclass(kw_only=True)
class PourD(AnchoredMethod):
    """Train the encoder on forget images towards the projected features of the original; the head stays.

    The loss is |theta_s(x) - P theta(x)|^2, summed over features and averaged over the batch, on images of the
    forgotten classes; theta is the original encoder, the teacher. Without ``lr`` the learning rate is 2.4e-3 / L0, at
    most 1e-3, with L0 the loss before the first step, which the forget set alone tells; the first fifth of the steps
    rises to it, since the largest gradients come first. A run is accepted when at most 0.2 % of the un-augmented forget
    images are still classified as before; otherwise a warning says so.
    """

    name: ClassVar[str] = "pour-d"
    paper: ClassVar[str] = "POUR (Le et al., CVPR 2026)"
    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "400 steps on forget images"
    pixelwise: ClassVar[bool] = True

    lr: float | None = None
    """The highest learning rate; None takes 2.4e-3 over the initial loss, at most 1e-3."""
    steps: int | None = 400
    """Optimisation steps; give these or epochs."""
    schedule: Schedule = "one-cycle"
    """How the learning rate moves: one-cycle, cosine, step or constant; with under 200 steps take cosine."""
    direction: Literal["weights", "centered-weights", "scores", "decisions", "means", "given"] = "weights"
    """What is taken away, as of pour-p: of the head's rows, the mean features, or the directions given."""
    directions: Tensor | None = None
    """The directions to project out, (k, d), with direction="given"."""
    layer_decay: float = 1.0
    """Factor of the learning rate from each layer of the network to the one before it; 1 trains all alike."""
    other_pixels: Literal["project", "keep", "ignore"] = "project"
    """On scenes, the target of the pixels around the class: project (P theta, as on it), keep (theta) or ignore."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction not in (*get_args(RowDirection), "means", "given"):
            raise UsageError(
                "direction must be weights, centered-weights, scores, decisions, means or given, but is "
                f"{self.direction!r}."
            )
        if (self.direction == "given") != (self.directions is not None):
            raise UsageError('direction="given" and directions= (k x d) belong together; pass both or neither.')
        if self.directions is not None:
            self.directions = torch.as_tensor(self.directions)
        if self.other_pixels not in ("project", "keep", "ignore"):
            raise UsageError(f"other_pixels must be project, keep or ignore, but is {self.other_pixels!r}.")
        if not 0 < self.layer_decay <= 1:
            raise UsageError(f"layer_decay must be above 0 and at most 1, but is {self.layer_decay}.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Distil the projected original into ``model``."""
        head = find_head(model)
        if isinstance(head.module, ProjectedHead):
            raise UsageError("pour-d trains the encoder of a plain model; fold the projected model first (pour.fold).")
        classes = requested_classes(model, request)
        projector, initial, left = self._target(model, head, classes, request, run)
        teacher = frozen_copy(model, run)
        lr = self.lr if self.lr is not None else _RATE_TIMES_LOSS / max(initial, _RATE_TIMES_LOSS / _HIGHEST_RATE)
        run.log(0, initial_loss=initial, lr=lr)

        head_parameters = list(head.module.parameters())
        trained_before = [parameter.requires_grad for parameter in head_parameters]
        head.module.requires_grad_(False)
        with (
            without_dropout(model),
            tap_features(model, head.name) as tap,
            tap_features(teacher, head.name) as teacher_tap,
        ):

            def objective(student: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
                images = to_unit(images)
                with torch.no_grad():
                    teacher(images)
                    before = teacher_tap.features.float()
                    target = projector(before, dim=head.dim)
                student(images)
                after = tap.features.float()
                if request.pixelwise:
                    cells = forgotten_cells(model, labels, classes, (after.shape[2], after.shape[3]))
                    return self._pixel_loss(after, target, before, cells)
                loss: Tensor = (after - target).square().flatten(1).sum(1).mean()
                return loss

            def distance(student: nn.Module, copies: Tensor) -> Tensor:
                with torch.no_grad():
                    teacher(copies)
                    target = projector(teacher_tap.features.float(), dim=head.dim)
                student(copies)
                squares: Tensor = (tap.features.float() - target).square()
                # As on the forget images: per cell of a map on scenes, otherwise per image.
                return squares.sum(dim=1).mean() if request.pixelwise else squares.flatten(1).sum(1).mean()

            batches = request.forget.training(run, batch_size=self.batch_size, augment=self.augment)
            batches, loss = self.with_anchors(batches, objective, distance, request, run)
            log = self.train(model, batches, loss, run, lr=lr, lr_factor=self._lr_factor(model))
        for parameter, trained in zip(head_parameters, trained_before, strict=True):
            parameter.requires_grad_(trained)
        self._judge(model, request, run, [initial, *log.losses], lr, left)
        return model

    def _pixel_loss(self, after: Tensor, target: Tensor, before: Tensor, cells: Tensor) -> Tensor:
        """The class's cells and the others weigh the same in all, however few the class has."""
        loss = cell_distance(after, target, cells)
        if self.other_pixels == "ignore":
            return loss
        return loss + cell_distance(after, target if self.other_pixels == "project" else before, 1 - cells)

    def _target(
        self, model: nn.Module, head: Head, classes: tuple[int, ...], request: Granted, run: Run
    ) -> tuple[Projector | Eraser, float, float]:
        """The projector, the loss before the first step, and what share of the images the projection alone leaves."""
        if request.pixelwise:
            batches = request.forget.once(run)
            fitter = cell_means(model, head, batches, classes, run) if self.direction == "means" else None
            projector = self._projector(head, classes, forgotten_before(model), fitter).to(run.torch_device)
            return projector, self._initial_pixel_loss(model, head, projector, batches, classes, run), 0.0
        features, labels = _seen(model, request, run)
        pooled = pool_features(features, head.dim)
        fitter = ProjectorFitter(classes=list(classes)).update(pooled, labels) if self.direction == "means" else None
        projector = self._projector(head, classes, forgotten_before(model), fitter).to(features.device)
        target = projector(features, dim=head.dim)
        left = 0.0
        if features.ndim == 2:
            with torch.no_grad():
                scores = head.layer(target.to(head.weight))
            left = (scores.argmax(dim=1) == labels.to(scores.device)).double().mean().item()
        return projector, (features - target).square().flatten(1).sum(1).mean().item(), left

    def _initial_pixel_loss(
        self,
        model: nn.Module,
        head: Head,
        projector: Projector | Eraser,
        batches: Iterable[tuple[Tensor, Tensor]],
        classes: tuple[int, ...],
        run: Run,
    ) -> float:
        """The mean of the loss over scenes as they are; those without a cell of the class count too, as in training."""
        total, count, shown = 0.0, 0, 0.0
        for before, labels in maps_of(model, head, batches, run):
            cells = forgotten_cells(model, labels, classes, (before.shape[2], before.shape[3]))
            total += self._pixel_loss(before, projector(before, dim=head.dim), before, cells).item() * len(labels)
            count, shown = count + len(labels), shown + cells.sum().item()
        if not shown:
            raise UsageError("The forget images show no pixel of the forgotten classes; check the masks.")
        return total / count

    def _projector(
        self, head: Head, classes: tuple[int, ...], earlier: Collection[int], means: ProjectorFitter | None
    ) -> Projector | Eraser:
        if self.directions is not None:
            return Projector.from_directions(self.directions.float())
        if self.direction == "means" and means is not None:
            return means.projector
        # Features must not show the classes of earlier requests either.
        together = with_earlier(head, classes, earlier)
        return head_removal(head, together, self.direction, earlier=earlier)  # type: ignore[arg-type]

    def _lr_factor(self, model: nn.Module) -> Callable[[str], float] | None:
        """Layer-wise rates: modules that own trained parameters, in order, the last at the full rate."""
        if self.layer_decay == 1:
            return None
        trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
        owners = list(dict.fromkeys(name.rpartition(".")[0] for name in trained))
        depth = {owner: len(owners) - 1 - position for position, owner in enumerate(owners)}
        return lambda name: float(self.layer_decay ** depth[name.rpartition(".")[0]])

    def options(self) -> dict[str, Any]:
        """The options by name; given directions are told by their shape."""
        shape = None if self.directions is None else list(self.directions.shape)
        return {**super().options(), "directions": shape}

    def _judge(self, model: nn.Module, request: Granted, run: Run, losses: list[float], lr: float, left: float) -> None:
        # The first of them is of the images as they are, the second of the first batch.
        before, after = max(losses[:2]), statistics.fmean(losses[-_LOSSES_JUDGED:])
        if after > _RISE * before:
            # A network that was destroyed has forgotten too, so the accuracy alone would accept it.
            warnings.warn(
                f"pour-d's loss rose from {before:.3g} to {after:.3g} at a learning rate of {lr:.3g}, which "
                'damages the network; lower lr. Pretrained transformers: optimizer="adamw", lr=3e-6.',
                stacklevel=3,
            )
        accuracy = forget_accuracy(model, request, run)
        run.log(run.steps, forget_accuracy=accuracy)
        if accuracy > _ACCEPTED_FORGET_ACCURACY:
            what = "pixels" if request.pixelwise else "images"
            cure = "raise steps or lr"
            if left > _ACCEPTED_FORGET_ACCURACY:
                # No student forgets what its target still shows.
                cure = (
                    f"the projection it learns leaves {left:.1%} itself, as it may where the head has not collapsed, "
                    'so take direction="decisions" or "scores"'
                )
            warnings.warn(
                f"pour-d still classifies {accuracy:.1%} of the forget {what} as before (at most "
                f"{_ACCEPTED_FORGET_ACCURACY:.1%} is accepted); {cure}.",
                stacklevel=3,
            )


def _seen(model: nn.Module, request: Granted, run: Run) -> tuple[Tensor, Tensor]:
    seen = extract_features(model, request.forget.once(run), device=run.torch_device)
    return seen.features, seen.labels
