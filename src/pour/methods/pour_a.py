"""POUR-A: the projection in front of the head, and an encoder that learns it from forget images alone."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pour.errors import DivergenceError, UsageError
from pour.methods.acceptance import MOST_ENCODER_SHARE, copy_state, move_back
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
    from torch import Tensor, nn

    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["PourA"]

_TRIAL_STEPS = 20
_JUDGED_STEPS = 4
_MOST_ROUNDS = 2
# Factor between the rates of a round that was not accepted and of the next.
_SLOWER = 3
# Number of forget images and of anchors on which directions and encoders are measured.
_MEASURED = 1000


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
        forget = first_images(request.forget.once(run), _MEASURED, run)
        anchors = self._fixed_anchors(request, run, kind)
        candidates = CANDIDATES if self.direction == "auto" else (self.direction,)
        choice = choose_by_measurement(model, classes, forget, anchors, candidates=candidates)
        before = forget_accuracy(model, request, run)
        run.choose(direction=choice.direction, anchor=kind)
        run.log(0, forget_accuracy=before, projection_leaves=choice.left, decisions_changed=choice.changed)
        logit = self.forgotten_logit or earlier_logit(model) or "keep"
        if kind == "none":
            warnings.warn(
                "The inputs are not images, so pour-a has no copies to hold the encoder in place. The encoder is "
                "unchanged and still knows the class; pass retain= in the request to train it.",
                stacklevel=3,
            )
            run.log(0, encoder_share=before)
        else:
            matching = Matching(model, choice, classes, request, run, forget, anchors, weight=self.anchor_weight)
            share = self._train_encoder(model, matching, request, run, kind)
            _warn_of_encoder(share, kind)
        return set_projector(model, choice.removal, classes, logit)

    def _train_encoder(
        self, model: nn.Module, matching: Matching, request: Granted, run: Run, kind: AnchorKind
    ) -> float:
        """Train the encoder in place and return the share of the forget images that it still gives away."""
        original = copy_state(model)
        share = forget_accuracy(model, request, run)
        with frozen_head(model), without_dropout(model), matching.tapped():
            lr = self.lr or self._find_rate(model, original, matching, request, run, kind)
            run.choose(lr=lr)
            for number in range(_MOST_ROUNDS if lr else 0):
                part, error = self._round(model, original, matching, request, run, kind, lr or 0.0, number)
                share = forget_accuracy(model, request, run)
                run.log(run.steps, encoder_share=share, part_kept=part, anchor_error=error)
                if share <= MOST_LEFT:
                    break
                if part < 1:
                    lr = (lr or 0.0) / _SLOWER
        return share

    def _round(
        self,
        model: nn.Module,
        original: dict[str, Tensor],
        matching: Matching,
        request: Granted,
        run: Run,
        kind: AnchorKind,
        lr: float,
        number: int,
    ) -> tuple[float, float]:
        """Train for ``steps``; return the part of the way that was accepted, and the error on the anchors there."""
        start = copy_state(model)
        try:
            self.train(
                model, self._batches(request, run, kind, self.steps or 1, salt=number), matching.loss, run, lr=lr
            )
            if self.lr is not None:
                # A rate that was asked for and destroys the network is an error; a rate from the trials is mended.
                forget_accuracy(model, request, run)
        except DivergenceError:
            if self.lr is not None:
                raise
            model.load_state_dict(start)
            return 0.0, 0.0
        model.eval()
        return move_back(model, original, matching.measure, most_left=max(MOST_LEFT, matching.choice.left))

    def _find_rate(
        self,
        model: nn.Module,
        original: dict[str, Tensor],
        matching: Matching,
        request: Granted,
        run: Run,
        kind: AnchorKind,
    ) -> float | None:
        """Return the rate whose trial ends with the lowest loss on images that are the same for all trials."""
        quiet = dataclasses.replace(run, history=[], progress=False, on_step=None)
        judged = list(self._batches(request, quiet, kind, _JUDGED_STEPS, salt=_MOST_ROUNDS).epoch(0))
        start = matching.mean_loss(judged)

        def trial(rate: float) -> float:
            batches = self._batches(request, quiet, kind, _TRIAL_STEPS, salt=_MOST_ROUNDS + 1)
            recipe = self.recipe(lr=rate, steps=_TRIAL_STEPS)
            try:
                fit(model, batches, recipe, quiet, objective=matching.loss, batch_norm=self.batch_norm, graph=False)
                loss = matching.mean_loss(judged) / start
            finally:
                model.load_state_dict(original)
            run.log(0, trial_rate=rate, trial_loss=loss)
            return loss

        return find_rate(trial)

    def _batches(self, request: Granted, run: Run, kind: AnchorKind, steps: int, *, salt: int) -> AnchoredSteps:
        return AnchoredSteps(
            request,
            run,
            kind,
            batch_size=self.batch_size,
            anchors=self.batch_size * self.anchors_per_image,
            steps=steps,
            salt=salt,
            augment=self.augment,
        )

    def _fixed_anchors(self, request: Granted, run: Run, kind: AnchorKind) -> list[Tensor]:
        """Return the anchors that directions and encoders are measured on."""
        if kind == "none":
            return []
        steps = -(-_MEASURED // (self.batch_size * self.anchors_per_image))
        return [anchors for _, _, anchors in self._batches(request, run, kind, steps, salt=_MOST_ROUNDS).epoch(1)]


def _warn_of_encoder(share: float, kind: AnchorKind) -> None:
    if share <= MOST_ENCODER_SHARE:
        return
    remedy = "take more steps" if kind == "retained" else "take more steps, or pass retain= in the request"
    warnings.warn(
        f"pour-a's projector removes the class, but the encoder still knows it: without the projector {share:.1%} of "
        f"the forget images keep their class (at most {MOST_ENCODER_SHARE:.0%} is accepted); {remedy}.",
        stacklevel=4,
    )
