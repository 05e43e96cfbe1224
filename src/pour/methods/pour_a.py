"""POUR-A: the projection in front of the head, and an encoder that learns it from forget images alone."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pour.errors import DivergenceError, UsageError, warn
from pour.models.head import find_head
from pour.models.projecting.project import common_logit, project
from pour.models.projecting.projected_head import ForgottenLogit
from pour.training.loop import fit
from pour.training.schedule import Schedule
from pour.unlearning.access import first_batches
from pour.unlearning.contract import option
from pour.unlearning.forget_only import forget_accuracy, requested_classes
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import register
from pour.unlearning.request import Need
from pour.unlearning.toolkit.anchors import Anchor, AnchorKind, anchor_kind, anchored_steps
from pour.unlearning.toolkit.distillation import MOST_LEFT
from pour.unlearning.toolkit.feature_matching import MOST_ANCHOR_ERROR, Matching, Measured, copy_state, move_back
from pour.unlearning.toolkit.find_rate import find_rate
from pour.unlearning.toolkit.measured_direction import CANDIDATES, Answers, choose_by_measurement
from pour.unlearning.toolkit.teachers import frozen_head, without_dropout

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from pour.training.run import Run
    from pour.unlearning.request import Granted
    from pour.unlearning.toolkit.batches import EpochsFrom

__all__ = ["PourA"]

_TRIAL_STEPS = 20
_JUDGED_STEPS = 4
_MOST_ROUNDS = 2
# Factors between two rounds: the first divides their length and rate, the second the anchors' weight.
_FACTOR = 3
_WEIGHT_FACTOR = 10
# Number of forget images, and of anchors, on which directions and encoders are measured. Scenes need more memory.
_MEASURED = 1000
_MEASURED_SCENES = 32
# Share of the forget images that the encoder may still show before a warning reports it.
_MOST_ENCODER_SHARE = 0.03
# Measurements of the original encoder.
_UNCHANGED = Measured(left=1.0, changed=0.0, anchor_error=0.0)


@register
@dataclass(kw_only=True)
class PourA(IterativeMethod):
    """Put the projector P in front of the head, and train the encoder until P hardly changes its features.

    Let theta be the original encoder, theta_s the trained encoder, and Q an orthonormal basis of the directions that P
    reads. On forget images x the loss is |theta_s(x) - P theta(x)|^2 + m |Q (theta_s(x) - P theta(x))|^2. On anchors
    x', transformed copies of the forget images, it is w |P theta_s(x') - P theta(x')|^2. The factor m is the variance
    of the anchors' features over the mean of |theta(x) - P theta(x)|^2, so that both sides start alike.

    P is the first of the directions weights, decisions and scores that passes two limits. It leaves at most 0.2 % of
    the forget images with their class, and changes no decision between retained classes on the anchors. The learning
    rate comes from short trials.
    """

    name: ClassVar[str] = "pour-a"
    paper: ClassVar[str] = "pour, anchored"
    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    accepts: ClassVar[tuple[Need, ...]] = ("retain",)
    cost: ClassVar[str] = "800 to 1,067 steps on forget images and their copies"
    pixelwise: ClassVar[bool] = True
    regroups: ClassVar[bool] = True

    lr: float | None = option(
        None, "Highest learning rate; by default the best of 3e-3 to 3e-6 in trials of 20 steps each."
    )
    steps: int | None = option(
        800,
        "Number of optimisation steps; a third as many follow if the encoder still shows the class. With fewer than "
        "400 the retained classes can suffer, because the first steps disturb what the later ones restore.",
    )
    batch_size: int = option(24, "Number of forget images per step, whatever the batches of the user's loader.")
    optimizer: Literal["sgd", "adamw"] = "adamw"
    schedule: Schedule = "one-cycle"
    augment: bool = option(False, "Crop and mirror the forget images at random.")
    direction: Literal["auto", "weights", "centered-weights", "scores", "decisions"] = option(
        "auto", "Direction that P removes; auto chooses it by measurement."
    )
    anchor: Anchor = option(
        "auto", "Anchors: views (transformed copies), retained (images), or auto: retained images if there are any."
    )
    anchors_per_image: int = option(2, "Number of anchors per forget image of a step.", least=1)
    anchor_weight: float = option(
        10.0, "Weight w of the loss on the anchors; a tenth in a second round if they changed little.", above=0
    )
    forgotten_logit: ForgottenLogit | None = option(
        None,
        "Score of a forgotten class: keep (W P z + b), mask or zero; by default as in an earlier request, or keep.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs is not None:
            raise UsageError(f"{self.name} counts steps, because its copies have no epochs; pass steps= instead.")

    def __call__(self, model: nn.Module, request: Granted, run: Run) -> nn.Module:
        """Choose the direction, train the encoder of `model`, and put the projector in front of its head."""
        classes = requested_classes(model, request)
        head = find_head(model)
        logit = common_logit(head.module, self.forgotten_logit)
        kind = anchor_kind(self.anchor, request)
        model.to(run.torch_device).eval()
        anchors_per_step = self.batch_size * self.anchors_per_image
        steps = functools.partial(
            anchored_steps,
            request,
            kind=kind,
            batch_size=self.batch_size,
            anchors=anchors_per_step,
            augment=self.augment,
        )
        limit = _MEASURED_SCENES if request.pixelwise else _MEASURED
        forget = first_batches(request.forget.sample(limit, run), limit, run)
        anchors: list[Tensor] = []
        if kind != "none":
            # Epoch 1 is an epoch that no training uses.
            measured = steps(run=run, steps=max(1, limit // anchors_per_step), salt=_MOST_ROUNDS).epoch(1)
            anchors = [batch for _, _, batch in measured]
        candidates = CANDIDATES if self.direction == "auto" else (self.direction,)
        answers = Answers(model, classes, forget, anchors)
        choice = choose_by_measurement(model, answers, candidates)
        share = forget_accuracy(model, request, run)
        run.choose(direction=choice.direction, anchor=kind, forgotten_logit=logit)
        run.log(0, forget_accuracy=share, projection_leaves=choice.left, decisions_changed=choice.changed)
        if problem := _untrainable(model, kind):
            warn(f"{problem} The encoder is unchanged and still shows the class.")
            run.log(0, encoder_share=share)
        else:
            matching = Matching(model, choice, answers, run, weight=self.anchor_weight)
            with frozen_head(model), without_dropout(model), matching.tapped():
                share, part = _Encoder(self, model, matching, request, run, steps).train(share)
            _warn_of_encoder(share, part, kind)
        released = project(model, choice.removal, classes=classes, forgotten_logit=logit, replace=True)
        accuracy = forget_accuracy(released, request, run)
        run.log(run.steps, released_accuracy=accuracy)
        if accuracy > MOST_LEFT:
            warn(
                f"pour-a's result still classifies {accuracy:.1%} of the forget images as before (at most "
                f'{MOST_LEFT:.1%} is accepted); take direction="auto" or "scores".'
            )
        return released


def _untrainable(model: nn.Module, kind: AnchorKind) -> str | None:
    """Return why the encoder cannot be trained, and the remedy; None if it can."""
    if kind == "none":
        return (
            "The inputs are not images, so pour-a cannot make copies as anchors; pass retain= in the request to train "
            "the encoder."
        )
    head = {id(parameter) for parameter in find_head(model).module.parameters()}
    if any(parameter.requires_grad and id(parameter) not in head for parameter in model.parameters()):
        return None
    return "No parameter of the encoder may be trained; set requires_grad on the encoder's parameters."


@dataclass(frozen=True)
class _Round:
    """Accepted encoder of a round, or the original encoder."""

    share: float
    """Share of the forget images that the encoder still shows as their class."""
    state: dict[str, Tensor]
    part: float = 0.0
    """Part of the way from the original that was kept."""
    measured: Measured = _UNCHANGED


@dataclass
class _Encoder:
    """The training of an encoder in place: trials of rates, rounds of steps, acceptance."""

    method: PourA
    model: nn.Module
    matching: Matching
    request: Granted
    run: Run
    steps: Callable[..., EpochsFrom]
    """Function that returns the batches of a run, a number of steps and a salt."""

    def train(self, share: float) -> tuple[float, float]:
        """Train the encoder and keep the best round.

        Returns:
            The share of the forget images that the encoder still shows, `share` before training. Then the part of the
            way from the original to the trained weights that was kept.
        """
        original = copy_state(self.model)
        best = _Round(share, original)
        lr = self.method.lr or self._find_rate(original)
        self.run.choose(lr=lr)
        for number in range(_MOST_ROUNDS):
            if lr is None:
                break
            done = self._round(original, lr, number)
            self.run.log(self.run.steps, round_share=done.share, round_part=done.part, round_rate=lr)
            best = min(best, done, key=lambda result: (result.share, -result.part))
            if best.share <= MOST_LEFT:
                break
            self.model.load_state_dict(best.state)
            if done.part < 1:
                lr /= _FACTOR
            elif done.measured.anchor_error < MOST_ANCHOR_ERROR / _FACTOR:
                # The anchors keep the encoder closer to the original than necessary.
                self.matching.weight /= _WEIGHT_FACTOR
        self.model.load_state_dict(best.state)
        measured = {"anchor_error": best.measured.anchor_error, "anchors_changed": best.measured.changed}
        self.run.log(self.run.steps, encoder_share=best.share, part_kept=best.part, **measured)
        return best.share, best.part

    def _round(self, original: dict[str, Tensor], lr: float, number: int) -> _Round:
        """Train for all steps, and move the weights back until the result is accepted."""
        # A rate that the user set and that destroys the network is an error; a rate from the trials is lowered.
        is_set_by_user = self.method.lr is not None and number == 0
        try:
            # A second round is a third as long, so that a run never takes more than a third longer.
            steps = -(-(self.method.steps or 1) // _FACTOR**number)
            batches = self.steps(run=self.run, steps=steps, salt=number)
            self.method.train(self.model, batches, self.matching.loss, self.run, lr=lr, steps=steps)
            if is_set_by_user:
                forget_accuracy(self.model, self.request, self.run)
        except DivergenceError:
            if is_set_by_user:
                raise
            return _Round(1.0, original)
        self.model.eval()
        most_left = max(MOST_LEFT, self.matching.choice.left)
        part, measured = move_back(self.model, original, self.matching.measure, most_left=most_left)
        share = forget_accuracy(self.model, self.request, self.run)
        state = copy_state(self.model)
        return _Round(share, state, part, measured) if measured else _Round(share, state)

    def _find_rate(self, original: dict[str, Tensor]) -> float | None:
        """Return the rate whose trial ends with the lowest loss on images that are the same for all trials."""
        run = dataclasses.replace(self.run, history=[], progress=False, on_step=None)
        judged = list(self.steps(run=run, steps=_JUDGED_STEPS, salt=_MOST_ROUNDS).epoch(0))
        start = self.matching.mean_loss(judged)

        def trial(rate: float) -> float:
            batches = self.steps(run=run, steps=_TRIAL_STEPS, salt=_MOST_ROUNDS + 1)
            recipe = self.method.as_recipe(lr=rate, steps=_TRIAL_STEPS)
            mode = self.method.batch_norm
            try:
                fit(self.model, batches, recipe, run, objective=self.matching.loss, batch_norm=mode, graph=False)
                loss = self.matching.mean_loss(judged) / start
            finally:
                self.model.load_state_dict(original)
            self.run.log(0, trial_rate=rate, trial_loss=loss)
            return loss

        return find_rate(trial)


def _warn_of_encoder(share: float, part: float, kind: AnchorKind) -> None:
    if share <= _MOST_ENCODER_SHARE:
        return
    cause = "" if part else " No trained encoder was accepted, so it is unchanged."
    remedies = ["take more steps"] if part else []
    remedies += [] if kind == "retained" else ["pass retain= in the request"]
    remedy = " or ".join(remedies) or "set a lower lr"
    warn(
        f"pour-a's projector removes the class, but the encoder still shows it: without the projector {share:.1%} of "
        f"the forget images keep their class (at most {_MOST_ENCODER_SHARE:.0%} is accepted).{cause} Remedy: {remedy}."
    )
