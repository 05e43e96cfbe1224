"""Measure the three terms of the bound during a method's training, against a retrained model."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pour._records import Option, Scalar, record
from pour.auditing.audited import Audited
from pour.auditing.distance import discrepancies
from pour.auditing.tapper import Tapper
from pour.bench.cell import make_iterative
from pour.data.draws import stratified_rows
from pour.errors import DivergenceError, UsageError
from pour.models.copy_and_swap import copy_model
from pour.models.unwrap import unwrap
from pour.training.tasks.task import get_task
from pour.unlearning.request import ForgetRequest

if TYPE_CHECKING:
    from torch import nn

    from pour.auditing.features import Side, Tapped
    from pour.data.splits import Splits
    from pour.training.run import Run

__all__ = ["Look", "Trajectory", "follow"]

# Retained training images for the alignment of the features of two networks.
_ALIGNMENT_IMAGES = 5000
# Fields of a discrepancy that a measurement during training does not have.
_ABSENT = ("metric", "view", "original", "floor", "epsilon", "decision")


@record()
class Look:
    """Measurements after some optimisation steps."""

    step: int
    """Number of optimisation steps; 0 is the original."""
    acc_r: float
    """Test accuracy on retained classes."""
    acc_f: float
    """Test accuracy on forgotten classes."""
    terms: dict[str, dict[str, Scalar]]
    """Values by metric: alpha, beta, total, bounds and terms, see `pour.auditing.distance.Discrepancy`."""


@record()
class Trajectory:
    """Measurements of one method before, during and after its training."""

    method: str
    options: dict[str, Option]
    dataset: str
    forgotten: tuple[int, ...]
    seed: int
    every: int
    """Number of steps between two looks."""
    looks: tuple[Look, ...]
    failed: str | None = None
    """Message of the divergence guard, if the method diverged after the last measurement."""


def follow(
    original: nn.Module,
    retrained: nn.Module,
    splits: Splits,
    method: str,
    *,
    every: int,
    run: Run,
    limit: int = _ALIGNMENT_IMAGES,
    **options: Any,
) -> Trajectory:
    """Run a method and measure its model before the first step, after every `every` steps and at the end.

    The measurements do not change the result of the method. A method that diverges is measured until then.

    Args:
        original: Model before forgetting.
        retrained: Reference.
        splits: Data with the classes to forget.
        method: Name of an iterative method.
        every: Number of steps between two looks.
        run: Seed, device and precision.
        limit: Largest number of retained training images for the alignment of the features of two networks.
        options: Options of the method.
    """
    iterative = make_iterative(method, options)
    if every < 1:
        raise UsageError(f"The steps between looks must be at least 1, but are {every}.")
    few = splits.retain_train.take(stratified_rows(splits.retain_train.labels, limit, run.seed))
    samples = {"test": splits.test.whole, "train": few}
    audited = Audited(get_task("classify"), splits.name, splits.classes, splits.forgotten, samples)
    tapper = Tapper(audited=audited, run=replace(run, precision="fp32"))
    observer = _Observer(
        copy_model(unwrap(original)).to(run.torch_device), tapper, tapper.tap(retrained, "retrained"), every, run.seed
    )
    observer.look(original, 0)
    observed = replace(run, on_step=observer.on_step, history=[], choices={})
    request = ForgetRequest.of(splits).grant(iterative.needs, name=method)
    failed = None
    with observed.seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            result = iterative(copy_model(unwrap(original)), request, observed)
            # A method that trains the network inside a larger network is measured only at the end.
            steps = observer.steps or observed.steps
            if observer.looks[-1].step != steps:
                observer.look(result, steps)
        except DivergenceError as error:
            failed = str(error)
    return Trajectory(
        method=method,
        options=iterative.options(),
        dataset=splits.name,
        forgotten=splits.forgotten,
        seed=run.seed,
        every=every,
        looks=tuple(observer.looks),
        failed=failed,
    )


@dataclass
class _Observer:
    """Counts optimisation steps and measures the model on a copy, which has no hooks of the model."""

    copy: nn.Module
    tapper: Tapper
    retrained: Tapped
    every: int
    seed: int
    looks: list[Look] = field(default_factory=list)
    steps: int = 0
    """Number of steps of the network itself, over all loops of the method."""

    def on_step(self, model: nn.Module, _: int) -> None:
        """Count a step, and measure the model if it is time. The training loop calls it."""
        if _shapes(model) != _shapes(self.copy):
            # The method trains another network, or a larger one that contains this one.
            return
        self.steps += 1
        if self.steps % self.every == 0:
            try:
                self.look(model, self.steps)
            except UsageError as error:
                # Scores that are not finite cannot be measured.
                raise DivergenceError(f"After step {self.steps}: {error}") from error

    def look(self, model: nn.Module, step: int) -> None:
        """Measure `model` without changing it."""
        self.copy.load_state_dict(unwrap(model).state_dict())
        tapped = self.tapper.tap(self.copy, "unlearned")
        terms = {
            str(metric): {name: value for name, value in asdict(discrepancy).items() if name not in _ABSENT}
            for metric, discrepancy in discrepancies(tapped, self.retrained, "features", seed=self.seed).items()
        }
        self.looks.append(
            Look(step=step, acc_r=_accuracy(tapped, "retain"), acc_f=_accuracy(tapped, "forget"), terms=terms)
        )


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in unwrap(model).state_dict().items()}


def _accuracy(tapped: Tapped, side: Side) -> float:
    is_right = tapped.splits["test"].scores.argmax(dim=1) == tapped.labels("test")
    return is_right[tapped.mask("test", side)].double().mean().item()
