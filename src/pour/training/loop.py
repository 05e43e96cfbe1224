"""Optimise a model: the loop of training, retraining and every iterative method."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pour._progress import ProgressBar
from pour.errors import UsageError
from pour.models.output import scores_of
from pour.models.tap import to_unit
from pour.training.compiling import compiled_encoder
from pour.training.guard import DivergenceGuard
from pour.training.step import TrainingStep, make_optimizer, trainable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pour.training.recipes import Recipe
    from pour.training.resume import ResumeFile
    from pour.training.run import Run

__all__ = [
    "BatchNormMode",
    "Epochs",
    "EpochsOf",
    "TrainingLog",
    "as_epochs",
    "classification_loss",
    "fit",
    "is_epochs",
    "set_training_mode",
]

BatchNormMode = Literal["train", "frozen"]
# Reading a loss makes the host wait for the GPU, so losses are read and checked in groups.
_STEPS_BETWEEN_READS = 50
# Compilation takes about twenty seconds, which a training on fewer images does not save.
_IMAGES_WORTH_COMPILING = 1_000_000


@runtime_checkable
class Epochs(Protocol):
    """Batches by epoch, such as a `DeviceLoader`."""

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        ...

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of epoch `number`, the same at every call."""
        ...


def is_epochs(batches: object) -> TypeGuard[Epochs]:
    """Return whether `batches` has the method `epoch`. Other loaders may have an attribute with this name."""
    return isinstance(batches, Epochs) and callable(batches.epoch)


def as_epochs(batches: Epochs | Iterable[Any], run: Run) -> Epochs:
    """Return `batches` as batches by epoch. Raise UsageError for an empty loader."""
    epochs = batches if is_epochs(batches) else EpochsOf(cast("Iterable[Any]", batches), run.seed)
    if not len(epochs):
        raise UsageError("There are no batches to train on.")
    return epochs


@dataclass
class TrainingLog:
    """Losses, times and number of images of a run."""

    losses: list[float] = field(default_factory=list)
    """Loss of every step."""
    epoch_seconds: list[float] = field(default_factory=list)
    """Time of every epoch. The first includes compilation."""
    images: int = 0
    """Number of images since the last (re)start."""
    seconds: float = 0.0
    """Time of the loop with compilation, over all (re)starts."""

    @property
    def images_per_second(self) -> float | None:
        """Training speed after the first epoch, which includes compilation. None for a single epoch."""
        later = self.epoch_seconds[1:]
        if not later:
            return None
        return self.images / len(self.epoch_seconds) * len(later) / sum(later)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the speed, ready for JSON."""
        return {**asdict(self), "images_per_second": self.images_per_second}


def classification_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of the model's scores. Byte images are first scaled to [0, 1]."""
    return F.cross_entropy(scores_of(model(to_unit(images))), labels)


def set_training_mode(model: nn.Module, batch_norm: BatchNormMode) -> None:
    """Put the model into training mode; BatchNorm updates its running statistics or keeps them. Its weights train."""
    model.train()
    if batch_norm == "frozen":
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def fit(
    model: nn.Module,
    batches: Epochs | Iterable[tuple[Tensor, ...]],
    recipe: Recipe,
    run: Run,
    *,
    objective: Callable[..., Tensor] = classification_loss,
    batch_norm: BatchNormMode = "train",
    compile: bool | Literal["encoder"] | None = None,
    graph: bool | None = None,
    lr_factor: Callable[[str], float] | None = None,
    rate: Callable[[int], float] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    resume: ResumeFile | None = None,
    description: str = "training",
) -> TrainingLog:
    """Optimise `model` in place.

    Only parameters with `requires_grad` change. The model ends on the run's device, in evaluation mode.

    Args:
        model: Network to train.
        batches: DeviceLoader, or an iterable of tuples of tensors with a length, such as a DataLoader.
        recipe: Optimiser, schedule and length of the training.
        run: Seed, device, precision, progress bar.
        objective: `objective(model, *batch)` returns the loss of a batch.
        batch_norm: Update BatchNorm's running statistics, or freeze them.
        compile: Use `torch.compile`; by default for long runs on a GPU. "encoder" leaves the head out, for objectives
            that read the features.
        graph: Capture whole steps as CUDA graphs; by default on a GPU. The objective must then not wait for the GPU.
        lr_factor: Returns the factor of the learning rate for the name of a parameter; by default 1.
        rate: Returns the learning rate of a step, counted from 0; by default the recipe's schedule.
        optimizer: Optimiser from `make_optimizer` whose momentum continues; by default a new
            one over all parameters that require gradients.
        resume: File with which a killed run resumes.
        description: Text of the progress bar.

    Raises:
        DivergenceError: The loss became NaN or exploded.
    """
    epochs = as_epochs(batches, run)
    device = run.torch_device
    on_gpu = device.type == "cuda"
    total = recipe.total_steps(len(epochs))
    model.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    if optimizer is None:
        optimizer = make_optimizer(_by_factor(model, lr_factor), recipe, device)
    log = TrainingLog()
    done = 0
    if resume is not None and (saved := resume.restore(model, optimizer)) is not None:
        done = saved["steps"]
        log.losses, log.seconds = saved["losses"], saved["seconds"]

    if compile is None:
        images_to_come = (total - done) * getattr(epochs, "batch_size", 0)
        compile = on_gpu and images_to_come >= _IMAGES_WORTH_COMPILING
    network = cast("nn.Module", torch.compile(model)) if compile is True else model
    step = TrainingStep(run, network, optimizer, objective, clip=recipe.clip, graph=on_gpu if graph is None else graph)
    set_training_mode(model, batch_norm)
    with (
        run.seeded(),
        torch.backends.cudnn.flags(enabled=True, benchmark=on_gpu, deterministic=torch.backends.cudnn.deterministic),
        compiled_encoder(model) if compile == "encoder" else contextlib.nullcontext(),
        ProgressBar(total, description, enabled=run.progress) as bar,
    ):
        reader = _LossReader(log, rate or partial(recipe.learning_rate, total=total), run, bar)
        last_save = started = time.perf_counter()
        before = log.seconds
        # A method that trains in rounds has one run per round. Dropout must differ between the rounds.
        salt = [run.steps] if run.steps else []
        for number in range(done // len(epochs), -(-total // len(epochs))):
            epoch_started = time.perf_counter()
            # Random layers such as dropout must not depend on the step at which a run was interrupted.
            torch.manual_seed(int(np.random.SeedSequence([run.seed, number, *salt]).generate_state(1)[0]))
            for batch in epochs.epoch(number):
                if done == total:
                    break
                step.set_learning_rate(reader.rate(done))
                moved = [_moved(part, device) for part in batch]
                reader.add(_taken(step, moved))
                log.images += len(moved[0])
                done += 1
                if run.on_step is not None:
                    run.on_step(model, done)
            # Reading losses makes the GPU idle while the host draws the next epoch, so they are read only if needed.
            now = time.perf_counter()
            if done == total or (resume is not None and now - last_save >= resume.seconds):
                reader.read()
                now = time.perf_counter()
            log.epoch_seconds.append(now - epoch_started)
            log.seconds = before + now - started
            if resume is not None and done < total and now - last_save >= resume.seconds:
                resume.save(model, optimizer, {"steps": done, "losses": log.losses, "seconds": log.seconds})
                last_save = time.perf_counter()
        # A method that stops early ends the batches before the last step. The guard checks these losses too.
        reader.read()
    optimizer.zero_grad(set_to_none=True)
    model.eval()
    if resume is not None:
        resume.remove()
    return log


def _by_factor(model: nn.Module, lr_factor: Callable[[str], float] | None) -> dict[float, list[nn.Parameter]]:
    parameters: dict[float, list[nn.Parameter]] = {}
    for name, parameter in trainable(model).items():
        parameters.setdefault(1.0 if lr_factor is None else lr_factor(name), []).append(parameter)
    return parameters


def _moved(part: Any, device: torch.device) -> Any:
    """Return a part of a batch on `device`, numbers of another precision as float32."""
    if not isinstance(part, Tensor):
        return part
    return part.to(device, torch.float32 if part.is_floating_point() else part.dtype, non_blocking=True)


def _taken(step: TrainingStep, batch: list[Any]) -> Tensor:
    try:
        return step(*batch)
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        raise UsageError(
            "BatchNorm cannot train on a batch of a single image; give larger ones (drop_last=True in a DataLoader) or "
            'freeze it with batch_norm="frozen".'
        ) from error


@dataclass(eq=False)
class _LossReader:
    """Keeps losses on the device, and copies them in groups to the log, the guard and the progress bar."""

    log: TrainingLog
    rate: Callable[[int], float]
    run: Run
    bar: ProgressBar

    def __post_init__(self) -> None:
        self._guard = DivergenceGuard()
        self._check(self.log.losses, first=0)
        self._group = _STEPS_BETWEEN_READS if self.run.torch_device.type == "cuda" else 1
        self._waiting: list[Tensor] = []

    def add(self, loss: Tensor) -> None:
        """Add the loss of one step."""
        self._waiting.append(loss.detach().clone())
        if len(self._waiting) >= self._group:
            self.read()

    def read(self) -> None:
        """Copy the waiting losses to the host and check them."""
        if not self._waiting:
            return
        first = len(self.log.losses)
        losses = torch.stack(self._waiting).float().tolist()
        self._waiting.clear()
        self._check(losses, first=first)
        self.log.losses += losses
        last = first + len(losses) - 1
        self.bar.update(last + 1, note=f"loss {losses[-1]:.4g}, rate {self.rate(last):.2g}")

    def _check(self, losses: list[float], *, first: int) -> None:
        rates = [self.rate(step) for step in range(first, first + len(losses))]
        self._guard.check(losses, first_step=first, learning_rates=rates)


class EpochsOf:
    """Batches of a user's DataLoader by epoch. Torch is seeded for every epoch, so that the order is repeatable.

    A loader with its own generator, or with random numbers of numpy, does not follow this seed.

    Examples:
        >>> batches = EpochsOf([(torch.zeros(2),), (torch.ones(2),)], seed=0)
        >>> len(batches), len(list(batches.epoch(0)))
        (2, 2)
    """

    def __init__(self, batches: Iterable[Any], seed: int) -> None:
        try:
            len(batches)  # type: ignore[arg-type]
        except TypeError:
            raise UsageError(
                "Training needs batches with a length, such as a list or a DataLoader of a dataset with a length; a "
                "stream has none."
            ) from None
        self._batches = batches
        self._seed = seed

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self._batches)  # type: ignore[arg-type]

    def epoch(self, number: int) -> Iterator[tuple[Tensor, ...]]:
        """Yield the batches of epoch `number`."""
        torch.manual_seed(int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0]))
        return iter(self._batches)
