"""The paper's three-term account of unlearning, followed step by step against a retrained model."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from pour._io import write_text
from pour.auditing.distance import discrepancies
from pour.auditing.features import Tapper
from pour.data.draws import stratified_rows
from pour.errors import DivergenceError, UsageError
from pour.models.copy_and_swap import copy_model
from pour.models.unwrap import unwrap
from pour.training.run import Run
from pour.unlearning.contract import Method
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.request import ForgetRequest
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    import os

    import torch
    from torch import nn

    from pour.auditing.features import Side, Tapped
    from pour.data.samples import IndexedSamples
    from pour.data.splits import Splits
    from pour.geometry.bound import BoundMetric
    from pour.training.run import Precision

__all__ = ["Look", "Trajectory", "follow"]


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen after some steps."""

    step: int
    """Optimisation steps done; 0 is the original."""
    acc_r: float
    """Test accuracy on retained classes."""
    acc_f: float
    """Test accuracy on forgotten classes."""
    terms: dict[str, dict[str, Any]]
    """By metric: alpha, beta, total, bounds and the three terms, see :class:`pour.auditing.distance.Discrepancy`."""


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """How a method moved, in the three terms of the bound on its distance to a retrained model."""

    method: str
    options: dict[str, Any]
    dataset: str
    forgotten: tuple[int, ...]
    seed: int
    every: int
    looks: tuple[Look, ...]
    failed: str | None = None
    """Where the method diverged, the sentence that says so; the looks end there."""

    def series(self, name: str, metric: BoundMetric = "mmd") -> list[float | None]:
        """One value of every look: ``alpha``, ``separation``, ``forgotten``, ``retained``, ``total`` and so on."""
        return [look.terms[metric][name] for look in self.looks]

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return asdict(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything as JSON, atomically."""
        write_text(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def follow(
    original: nn.Module,
    retrained: nn.Module,
    splits: Splits,
    method: str | Method = "pour-d",
    *,
    every: int,
    seed: int = 0,
    device: str | None = None,
    precision: Precision | None = None,
    limit: int = 5000,
    progress: bool = True,
    **options: Any,
) -> Trajectory:
    """Run a method and look at its model before the first step, after every ``every`` steps and at the end.

    The looks do not change the result: it is the one that :func:`pour.unlearn` gives. A method that diverges is
    followed up to there.

    Args:
        original: the model before forgetting.
        retrained: the reference.
        splits: the data, and the classes to forget.
        method: an iterative method, by name or with its options.
        every: steps from one look to the next.
        seed: fixes everything random.
        device: where to compute.
        precision: fp32 or bf16.
        limit: at most this many retained training images for the alignment of the two networks' features.
        progress: show a progress bar.
        options: the method's options, where it is given by name.
    """
    chosen = method if isinstance(method, Method) else make_method(method, **options)
    if not isinstance(chosen, IterativeMethod):
        raise UsageError(f"{chosen.name} takes no optimisation steps to follow; give an iterative method.")
    if every < 1:
        raise UsageError(f"The steps between looks must be at least 1, but are {every}.")
    run = Run(seed=seed, device=device, precision=precision, progress=progress)
    observer = _Observer(copy_model(unwrap(original)), retrained, splits, run.torch_device, every, limit, seed)
    observer.look(original, 0)
    watched = replace(run, on_step=observer.on_step)
    model = copy_model(unwrap(original))
    request = ForgetRequest.of(splits).grant(chosen.needs, name=chosen.name)
    with watched.seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            observer.finish(chosen(model, request, watched))
            failed = None
        except DivergenceError as error:
            failed = str(error)
    return Trajectory(
        method=chosen.name,
        options=chosen.options(),
        dataset=splits.name,
        forgotten=splits.forgotten,
        seed=seed,
        every=every,
        looks=tuple(observer.looks),
        failed=failed,
    )


class _Observer:
    """Counts steps and, now and then, measures the model by way of a copy, which has none of its hooks."""

    def __init__(
        self,
        copy: nn.Module,
        retrained: nn.Module,
        splits: Splits,
        device: torch.device,
        every: int,
        limit: int,
        seed: int,
    ) -> None:
        self.looks: list[Look] = []
        self._copy = copy.to(device)
        self._steps = self._other_steps = 0
        self._every = every
        self._seed = seed
        self._tapper = Tapper(
            splits={"test": splits.test.whole, "train": _some(splits.retain_train, limit, seed)},
            forgotten=splits.forgotten,
            device=device,
        )
        self._retrained = self._tapper.tap(retrained, "retrained")

    def on_step(self, model: nn.Module, _: int) -> None:
        """Called by the loop; a method with several loops goes on counting, and what else it trains does not count."""
        if _shapes(model) != _shapes(self._copy):
            self._other_steps += 1
            return
        self._steps += 1
        if self._steps % self._every == 0:
            try:
                self.look(model, self._steps)
            except UsageError as error:
                # What no longer gives numbers cannot be measured.
                raise DivergenceError(f"After step {self._steps}: {error}") from error

    def finish(self, model: nn.Module) -> None:
        """Look at what came out, unless the last look was at it.

        A method that trains the network inside another, with further rows or a judge beside it, has this look alone.
        """
        steps = self._steps or self._other_steps
        if self.looks[-1].step != steps:
            self.look(model, steps)

    def look(self, model: nn.Module, step: int) -> None:
        """Measure ``model`` and leave it as it is."""
        self._copy.load_state_dict(unwrap(model).state_dict())
        tapped = self._tapper.tap(self._copy, "unlearned")
        found = discrepancies(tapped, self._retrained, "features", seed=self._seed)
        self.looks.append(
            Look(
                step=step,
                acc_r=_accuracy(tapped, "retain"),
                acc_f=_accuracy(tapped, "forget"),
                terms={str(metric): _terms(asdict(value)) for metric, value in found.items()},
            )
        )


def _shapes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in unwrap(model).state_dict().items()}


def _terms(found: dict[str, Any]) -> dict[str, Any]:
    absent = ("metric", "view", "original", "floor", "epsilon", "decision")
    return {name: value for name, value in found.items() if name not in absent}


def _accuracy(tapped: Tapped, side: Side) -> float:
    seen = tapped.splits["test"]
    right = seen.scores.argmax(dim=1) == seen.labels
    return right[tapped.mask("test", side)].double().mean().item()


def _some(split: IndexedSamples, limit: int, seed: int) -> IndexedSamples:
    return split.take(stratified_rows(split.labels, limit, seed))
