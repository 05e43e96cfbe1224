"""The training target of POUR-A's encoder, and the conditions for its release.

The encoder learns projected features on forget images and keeps its features on anchors.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import DivergenceError
from pour.geometry.eraser import Eraser
from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.tap import tap_features
from pour.unlearning.toolkit.features import forgotten_rows, row_mean
from pour.unlearning.toolkit.teachers import frozen_copy
from pour.unlearning.user_batches import join_images

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

    from pour.geometry.projector import Projector
    from pour.models.tap import Tap
    from pour.training.run import Run
    from pour.unlearning.toolkit.measured_direction import Answers, Choice

__all__ = ["MOST_ANCHOR_ERROR", "MOST_CHANGED", "Matching", "Measured", "copy_state", "move_back"]

MOST_ANCHOR_ERROR = 0.05
"""Largest mean squared change of the anchors' projected features, as a share of their variance."""
MOST_CHANGED = 0.1
"""Largest share of the anchors whose decision between retained classes may change."""
# Parts of the way from the original to the trained weights that are tried, in this order.
_PARTS = (1.0, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)
# Without a limit, a class that the projection hardly moves would have an unlimited weight.
_MOST_WEIGHT = 1000.0


@dataclass(frozen=True)
class Measured:
    """Measurements of an encoder with the projector in front of its head."""

    left: float
    """Share of the forget images whose answer, as released, is a forgotten class."""
    changed: float
    """Share of the anchors whose decision between retained classes, as released, is not the original decision."""
    anchor_error: float
    """Mean squared change of the anchors' projected features, as a share of their variance."""

    def accepted(self, most_left: float) -> bool:
        """Return whether the encoder may be released. NaN is not accepted."""
        return self.left <= most_left and self.changed <= MOST_CHANGED and self.anchor_error <= MOST_ANCHOR_ERROR


class Matching:
    """Loss and measurements of an encoder that learns a projection.

    Rows are the feature vectors of an input: one per image, or one per token or cell of a map. On scenes, the rows of
    forget images that show no forgotten class are anchors too.

    Args:
        model: Network that is trained; a copy of it is the teacher.
        choice: Direction with its projection P.
        answers: Answers of the original on forget images and on anchors. P moves the features of the forget images.
            The variance of the anchors' features is the scale of their changes.
        run: Device.
        weight: Weight of the loss on the anchors.
    """

    def __init__(self, model: nn.Module, choice: Choice, answers: Answers, run: Run, *, weight: float) -> None:
        self.choice = choice
        self.weight = weight
        self._model, self._answers = model, answers
        self._teacher = frozen_copy(model, run)
        self._head = find_head(model)
        self._projection = choice.removal.to(run.torch_device)
        self._basis = _basis(self._projection)
        with self.tapped(), torch.no_grad():
            kept_features = torch.cat([self._projection(self._teacher_rows(batch)) for batch in answers.anchors])
            # Dividing by the variance makes the weight of the anchors comparable between networks.
            variance = kept_features.flatten(0, -2).var(dim=0).sum().item()
            self._variance = max(variance, torch.finfo(torch.float32).tiny)
            self._targets = torch.split(kept_features, [len(batch) for batch in answers.anchors])
            moved, count = 0.0, 0.0
            for images, labels in answers.forget:
                rows = self._teacher_rows(images)
                cells = forgotten_rows(model, labels, answers.classes, rows.shape[:-1])
                moved += ((rows - self._projection(rows)).square().sum(dim=-1) * cells).sum().item()
                count += cells.sum().item()
        self._extra = min(self._variance * max(count, 1) / max(moved, 1e-30), _MOST_WEIGHT)

    @contextlib.contextmanager
    def tapped(self) -> Iterator[None]:
        """Record the features of the trained network and of its teacher while the block runs."""
        with (
            tap_features(self._model, self._head.name) as student_tap,
            tap_features(self._teacher, self._head.name) as teacher_tap,
        ):
            self._student_tap, self._teacher_tap = student_tap, teacher_tap
            yield

    def loss(self, student: nn.Module, images: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
        """Return the loss of a step: the loss of forget rows plus the weighted loss of the other rows."""
        together = join_images([images, anchors])
        with torch.no_grad():
            target = self._projection(self._teacher_rows(together))
        rows = self._rows(student, self._student_tap, together)
        error = rows - target
        cells = error.new_zeros(error.shape[:-1])
        cells[: len(images)] = forgotten_rows(self._model, labels, self._answers.classes, cells[: len(images)].shape)
        forget = error.square().sum(dim=-1) + self._extra * (error @ self._basis.T).square().sum(dim=-1)
        retain = (self._projection(rows) - target).square().sum(dim=-1)
        return (row_mean(forget, cells) + self.weight * row_mean(retain, 1 - cells)) / self._variance

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[tuple[Tensor, ...]]) -> float:
        """Return the mean loss over `batches` with the network's current weights."""
        with evaluating(self._model):
            losses = [self.loss(self._model, *batch).item() for batch in batches]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def measure(self) -> Measured:
        """Return the measurements of the network with the projector in front of its head."""
        total = count = 0.0
        with evaluating(self._model):
            for images, target in zip(self._answers.anchors, self._targets, strict=True):
                rows = self._projection(self._rows(self._model, self._student_tap, images))
                distance = (rows - target).square().sum(dim=-1)
                total, count = total + distance.sum().item(), count + distance.numel()
        left, changed = self._answers.behind(self._projection, self._model, self._head)
        return Measured(left=left, changed=changed, anchor_error=total / max(count, 1) / self._variance)

    def _teacher_rows(self, images: Tensor) -> Tensor:
        return self._rows(self._teacher, self._teacher_tap, images)

    def _rows(self, model: nn.Module, tap: Tap, images: Tensor) -> Tensor:
        """Return the encoder's features, (n, d) or (n, ..., d)."""
        model(images)
        return tap.raw.float().movedim(self._head.dim, -1)


def _basis(projection: Projector | Eraser) -> Tensor:
    """Return an orthonormal basis of the directions that the projection reads, as rows."""
    rows = projection.readings if isinstance(projection, Eraser) else projection.basis
    basis: Tensor = torch.linalg.qr(rows.double().T).Q.T
    return basis.float()


def copy_state(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's state dict."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@torch.no_grad()
def move_back(
    model: nn.Module, original: dict[str, Tensor], measure: Callable[[], Measured], *, most_left: float
) -> tuple[float, Measured | None]:
    """Move `model` back towards its original weights until it is accepted.

    The parts 1, 0.9, 0.8, ... 0.1 of the way from the original to the trained weights are tried.

    Args:
        model: Trained network, changed in place.
        original: State dict from before the training.
        measure: Function that measures `model` with its current weights.
        most_left: Largest share of the forget images that may keep their class as released.

    Returns:
        The accepted part and its measurements. If no part is accepted, the original weights, 0 and None.
    """
    trained = copy_state(model)
    if all(bool(tensor.isfinite().all()) for tensor in trained.values() if tensor.is_floating_point()):
        for part in _PARTS:
            for name, tensor in model.state_dict().items():
                moves = tensor.is_floating_point() and part < 1
                tensor.copy_(torch.lerp(original[name], trained[name], part) if moves else trained[name])
            try:
                measured = measure()
            except DivergenceError:
                continue
            if measured.accepted(most_left):
                return part, measured
    model.load_state_dict(original)
    return 0.0, None
