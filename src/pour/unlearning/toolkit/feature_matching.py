"""The task of POUR-A's encoder: projected features on forget images, unchanged ones on anchors."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pour.errors import PourError
from pour.geometry.eraser import Eraser
from pour.models.head import find_head
from pour.models.history import forgotten_before
from pour.models.modes import evaluating
from pour.models.tap import tap_features
from pour.unlearning.toolkit.acceptance import Measured
from pour.unlearning.toolkit.feature_maps import forgotten_cells
from pour.unlearning.toolkit.measured_direction import projected_in_place, scores_on, share_answered, share_changed
from pour.unlearning.toolkit.teachers import frozen_copy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

    from pour.geometry.projector import Projector
    from pour.models.tap import Tap
    from pour.training.run import Run
    from pour.unlearning.request import Granted
    from pour.unlearning.toolkit.measured_direction import Choice

__all__ = ["Matching"]

# Without a bound, a class that hardly moves the features would have a weight without a bound.
_MOST_WEIGHT = 1000.0


class Matching:
    """Loss and measurements of an encoder that learns a projection.

    Rows are the feature vectors of an input: one per image, or one per token or cell of a map. On scenes, the rows of
    forget images that show no forgotten class are anchors too.

    Args:
        model: Network that is trained; a copy of it is the teacher.
        choice: Direction with its projection P.
        classes: Indices of the classes to forget.
        request: Forget images.
        run: Device.
        forget: Batches of forget images and labels, to measure how far P moves their features.
        anchors: Batches of anchors, to measure the variance of their features and how far training moves them.
        weight: Weight of the loss on the anchors.
    """

    def __init__(
        self,
        model: nn.Module,
        choice: Choice,
        classes: tuple[int, ...],
        request: Granted,
        run: Run,
        forget: Sequence[tuple[Tensor, Tensor]],
        anchors: Sequence[Tensor],
        *,
        weight: float,
    ) -> None:
        self.choice = choice
        self.weight = weight
        self._model, self._request, self._run = model, request, run
        self._teacher = frozen_copy(model, run)
        self._head = find_head(model)
        self._classes = classes
        self._projection = choice.removal.to(run.torch_device)
        self._basis = _basis(self._projection)
        self._anchors, self._forget = anchors, forget
        self._gone = tuple(sorted({*classes, *forgotten_before(model)}))
        self._scores = [scores_on(model, batch) for batch in anchors]
        self._taps: tuple[Tap, Tap] | None = None
        with tap_features(self._teacher, self._head.name) as tap:
            kept = torch.cat([self._projected(self._rows(self._teacher, tap, batch)) for batch in anchors])
            flat = kept.flatten(0, -2)
            # The scale of the loss; it makes the weight on the anchors mean the same on every network.
            self._variance = max(flat.var(dim=0).sum().item(), torch.finfo(torch.float32).tiny)
            self._targets = torch.split(kept, [len(batch) for batch in anchors])
            moved, count = 0.0, 0.0
            for images, labels in forget:
                rows = self._rows(self._teacher, tap, images)
                cells = self._cells(labels, rows)
                moved += ((rows - self._projected(rows)).square().sum(dim=-1) * cells).sum().item()
                count += cells.sum().item()
        self._extra = min(self._variance * max(count, 1) / max(moved, 1e-30), _MOST_WEIGHT)

    @contextlib.contextmanager
    def tapped(self) -> Iterator[None]:
        """Record the features of the trained network and of its teacher while the block runs."""
        with (
            tap_features(self._model, self._head.name) as own,
            tap_features(self._teacher, self._head.name) as other,
        ):
            self._taps = (own, other)
            try:
                yield
            finally:
                self._taps = None

    def loss(self, student: nn.Module, images: Tensor, labels: Tensor, anchors: Tensor) -> Tensor:
        """Return the loss of a step: that of forget rows plus the weighted one of the other rows."""
        own, other = self._tapped_networks()
        together = torch.cat([images, anchors])
        with torch.no_grad():
            target = self._projected(self._rows(self._teacher, other, together))
        rows = self._rows(student, own, together)
        count = len(images)
        error = rows - target
        cells = torch.cat([self._cells(labels, rows[:count]), error.new_zeros(error[count:].shape[:-1])])
        forget = error.square().sum(dim=-1) + self._extra * (error @ self._basis.T).square().sum(dim=-1)
        kept = (self._projected(rows) - target).square().sum(dim=-1)
        return (_mean(forget, cells) + self.weight * _mean(kept, 1 - cells)) / self._variance

    @torch.no_grad()
    def mean_loss(self, batches: Sequence[tuple[Tensor, ...]]) -> float:
        """Return the mean loss over ``batches`` of the network as it is."""
        with evaluating(self._model):
            losses = [self.loss(self._model, *batch).item() for batch in batches]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def measure(self) -> Measured:
        """Return what is measured of the network with the projector in front of its head."""
        own, _ = self._tapped_networks()
        total = count = 0.0
        with evaluating(self._model):
            for images, target in zip(self._anchors, self._targets, strict=True):
                rows = self._projected(self._rows(self._model, own, images))
                distance = (rows - target).square().sum(dim=-1)
                total, count = total + distance.sum().item(), count + distance.numel()
        with projected_in_place(self._model, self._head, self._projection, self._gone) as released:
            left = share_answered(released, self._forget, self._gone)
            changed = share_changed(released, self._anchors, self._scores, self._gone)
        return Measured(left=left, changed=changed, anchor_error=total / max(count, 1) / self._variance)

    def _tapped_networks(self) -> tuple[Tap, Tap]:
        """Return the taps of the trained network and of its teacher. Raise PourError outside of :meth:`tapped`."""
        if self._taps is None:
            raise PourError("The encoder is measured without its taps; call this inside of tapped().")
        return self._taps

    def _projected(self, rows: Tensor) -> Tensor:
        projected: Tensor = self._projection(rows)
        return projected

    def _rows(self, model: nn.Module, tap: Tap, images: Tensor) -> Tensor:
        """Return the encoder's features, (n, d) or (n, ..., d)."""
        model(images)
        return tap.raw.float().movedim(self._head.dim, -1)

    def _cells(self, labels: Tensor, rows: Tensor) -> Tensor:
        """Return 1 for each row of a forgotten class, otherwise 0: all rows of a forget image, except on scenes."""
        if not self._request.pixelwise:
            return rows.new_ones(rows.shape[:-1])
        return forgotten_cells(self._model, labels, self._classes, (rows.shape[1], rows.shape[2])).to(rows)


def _basis(projection: Projector | Eraser) -> Tensor:
    """Return orthonormal rows that span what the projection reads."""
    rows = projection.readings if isinstance(projection, Eraser) else projection.basis
    basis: Tensor = torch.linalg.qr(rows.double().T).Q.T
    return basis.float()


def _mean(values: Tensor, weights: Tensor) -> Tensor:
    return (values * weights).sum() / weights.sum().clamp(min=1)
