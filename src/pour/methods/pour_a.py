"""POUR-A: the projection in front of the head, and an encoder that learns it from forget images alone."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pour.errors import DivergenceError, UsageError
from pour.methods.acceptance import MOST_ANCHOR_ERROR, MOST_ENCODER_SHARE, copy_state, move_back
from pour.methods.anchors import Anchor, AnchoredSteps, AnchorKind, anchor_kind, first_images
from pour.methods.contract import register
from pour.methods.forget_only import forget_accuracy, requested_classes
from pour.methods.front import earlier_logit, set_projector
from pour.methods.iterative import IterativeMethod
from pour.methods.matching import Matching
from pour.methods.measured_direction import CANDIDATES, MOST_LEFT, choose_by_measurement
from pour.methods.rate import find_rate
from pour.methods.request import Need
from pour.methods.teachers import frozen_head, without_dropout
from pour.models.projected import ForgottenLogit
from pour.training.loop import fit
from pour.training.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["PourA"]

_TRIAL_STEPS = 20
_JUDGED_STEPS = 4
_MOST_ROUNDS = 2
# Factor between the rates of two rounds.
_FACTOR = 3
# Number of forget images, and of batches of anchors, on which directions and encoders are measured.
_MEASURED = 1000
_MEASURED_BATCHES = 16


@register
@dataclass(kw_only=True)
class PourA(IterativeMethod):
    """Put the projector P in front of the head, and train the encoder until its features are projected already.

    On forget images x the loss is |theta_s(x) - P theta(x)|^2 + m |Q (theta_s(x) - P theta(x))|^2, with theta the
    original encoder, theta_s the trained one and Q an orthonormal basis of what P reads. On anchors x', transformed
    copies of the forget images, it is w |P theta_s(x') - P theta(x')|^2. The factor m is the variance of the anchors'
    features over the mean of |theta(x) - P theta(x)|^2, so that both sides start alike. P is the first of the
    directions weights, decisions and scores that leaves at most 0.2 % of the forget images with their class and
    changes no decision between retained classes on the anchors. The learning rate comes from short trials.
    """

    name: ClassVar[str] = "pour-a"
    paper: ClassVar[str] = "pour, anchored"
    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    accepts: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "800 to 1,600 steps on forget images and their copies"
    pixelwise: ClassVar[bool] = True
    regroups: ClassVar[bool] = True

    lr: float | None = None
    """Highest learning rate; None takes the best of 3e-3 to 3e-5 by trials of 20 steps each."""
    steps: int | None = 800
    """Number of optimisation steps of a round; a second round follows if the encoder still shows the class."""
    batch_size: int = 32
    """Number of forget images per step, whatever the batches of the user's own loader."""
    optimizer: Literal["sgd", "adamw"] = "adamw"
    """Optimiser: SGD with momentum, or AdamW."""
    schedule: Schedule = "one-cycle"
    """Course of the learning rate: one-cycle, cosine, step or constant."""
    augment: bool = False
    """Crop and mirror the forget images at random."""
    direction: Literal["auto", "weights", "centered-weights", "scores", "decisions"] = "auto"
    """Direction that P removes; auto chooses it by measurement."""
    anchor: Anchor = "auto"
    """Anchors: views (transformed copies), retained (retained images), or auto: retained images if there are any."""
    anchors_per_image: int = 2
    """Number of anchors per forget image of a step."""
    anchor_weight: float = 10.0
    """Weight w of the loss on the anchors."""
    forgotten_logit: ForgottenLogit | None = None
    """Score of a forgotten class: keep (W P z + b), mask or zero; None keeps it, or does as an earlier request."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction not in ("auto", "weights", "centered-weights", "scores", "decisions"):
            raise UsageError(
                f"direction is {self.direction!r}; choose auto, weights, centered-weights, scores or decisions."
            )
        if self.anchor not in ("auto", "views", "retained"):
            raise UsageError(f"anchor is {self.anchor!r}; choose auto, views or retained.")
        if self.anchors_per_image < 1:
            raise UsageError(f"anchors_per_image must be at least 1, but is {self.anchors_per_image}.")
        if self.anchor_weight <= 0:
            raise UsageError(f"anchor_weight must be above 0, but is {self.anchor_weight}.")
        if self.epochs is not None:
            raise UsageError(f"{self.name} counts steps, because its copies have no epochs; give steps= instead.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Choose the direction, train the encoder of ``model``, and put the projector in front of its head."""
        classes = requested_classes(model, request)
        kind = anchor_kind(self.anchor, request, run)
        model.to(run.torch_device).eval()
        steps = functools.partial(
            AnchoredSteps,
            request,
            kind=kind,
            batch_size=self.batch_size,
            anchors=self.batch_size * self.anchors_per_image,
            augment=self.augment,
        )
        forget = first_images(request.forget.once(run), _MEASURED, run)
        anchors = [] if kind == "none" else steps(run=run, steps=_MEASURED_BATCHES, salt=_MOST_ROUNDS).anchors()
        candidates = CANDIDATES if self.direction == "auto" else (self.direction,)
        choice = choose_by_measurement(model, classes, forget, anchors, candidates=candidates)
        run.choose(direction=choice.direction, anchor=kind)
        share = forget_accuracy(model, request, run)
        run.log(0, forget_accuracy=share, projection_leaves=choice.left, decisions_changed=choice.changed)
        logit = self.forgotten_logit or earlier_logit(model) or "keep"
        if kind == "none":
            warnings.warn(
                "The inputs are not images, so pour-a has no copies to hold the encoder in place. The encoder is "
                "unchanged and still knows the class; pass retain= in the request to train it.",
                stacklevel=3,
            )
            run.log(0, encoder_share=share)
        else:
            matching = Matching(model, choice, classes, request, run, forget, anchors, weight=self.anchor_weight)
            with frozen_head(model), without_dropout(model), matching.tapped():
                share = _Encoder(self, model, matching, request, run, steps).train(share)
            _warn_of_encoder(share, kind)
        return set_projector(model, choice.removal, classes, logit)


@dataclass
class _Encoder:
    """The training of an encoder in place: trials of rates, rounds of steps, acceptance."""

    method: PourA
    model: nn.Module
    matching: Matching
    request: Granted
    run: Run
    steps: Callable[..., AnchoredSteps]
    """Makes the batches of a run, a number of steps and a salt."""

    def train(self, share: float) -> float:
        """Train, and return the share of the forget images that the encoder gives away; ``share`` is that before."""
        original = copy_state(self.model)
        lr = self.method.lr or self._find_rate(original)
        self.run.choose(lr=lr)
        for number in range(_MOST_ROUNDS if lr else 0):
            part, error = self._round(original, lr or 0.0, number)
            share = forget_accuracy(self.model, self.request, self.run)
            self.run.log(self.run.steps, encoder_share=share, part_kept=part, anchor_error=error)
            if share <= MOST_LEFT:
                break
            if part < 1:
                lr = (lr or 0.0) / _FACTOR
            elif share > MOST_ENCODER_SHARE and error < MOST_ANCHOR_ERROR / _FACTOR and self.method.lr is None:
                # The anchors leave room for a higher rate.
                lr = (lr or 0.0) * _FACTOR
        return share

    def _round(self, original: dict[str, Tensor], lr: float, number: int) -> tuple[float, float]:
        """Take all steps; return the part of the way that was accepted, and the error on the anchors there."""
        start = copy_state(self.model)
        try:
            batches = self.steps(run=self.run, steps=self.method.steps, salt=number)
            self.method.train(self.model, batches, self.matching.loss, self.run, lr=lr)
            if self.method.lr is not None:
                # A rate that was asked for and destroys the network is an error; a rate from the trials is mended.
                forget_accuracy(self.model, self.request, self.run)
        except DivergenceError:
            if self.method.lr is not None:
                raise
            self.model.load_state_dict(start)
            return 0.0, 0.0
        self.model.eval()
        most_left = max(MOST_LEFT, self.matching.choice.left)
        return move_back(self.model, original, self.matching.measure, most_left=most_left)

    def _find_rate(self, original: dict[str, Tensor]) -> float | None:
        """Return the rate whose trial ends with the lowest loss on images that are the same for all trials."""
        run = dataclasses.replace(self.run, history=[], progress=False, on_step=None)
        judged = list(self.steps(run=run, steps=_JUDGED_STEPS, salt=_MOST_ROUNDS).epoch(0))
        start = self.matching.mean_loss(judged)

        def trial(rate: float) -> float:
            batches = self.steps(run=run, steps=_TRIAL_STEPS, salt=_MOST_ROUNDS + 1)
            recipe = self.method.recipe(lr=rate, steps=_TRIAL_STEPS)
            mode = self.method.batch_norm
            try:
                fit(self.model, batches, recipe, run, objective=self.matching.loss, batch_norm=mode, graph=False)
                loss = self.matching.mean_loss(judged) / start
            finally:
                self.model.load_state_dict(original)
            self.run.log(0, trial_rate=rate, trial_loss=loss)
            return loss

        return find_rate(trial)


def _warn_of_encoder(share: float, kind: AnchorKind) -> None:
    if share <= MOST_ENCODER_SHARE:
        return
    remedy = "take more steps" if kind == "retained" else "take more steps, or pass retain= in the request"
    warnings.warn(
        f"pour-a's projector removes the class, but the encoder still knows it: without the projector {share:.1%} of "
        f"the forget images keep their class (at most {MOST_ENCODER_SHARE:.0%} is accepted); {remedy}.",
        stacklevel=4,
    )
