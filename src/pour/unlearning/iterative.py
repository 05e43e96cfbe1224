"""What the methods that train have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pour.errors import UsageError
from pour.training.loop import BatchNormMode, fit
from pour.training.recipes import Recipe
from pour.training.schedule import Schedule
from pour.unlearning.contract import Method

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor, nn

    from pour.training.loop import Epochs, TrainingLog
    from pour.training.run import Run

__all__ = ["IterativeMethod"]


@dataclass(kw_only=True)
class IterativeMethod(Method):
    """A method that takes optimisation steps; subclasses set their own defaults."""

    rate_options: ClassVar[tuple[str, ...]] = ("lr",)
    """The options that are learning rates; tuning scales them together."""
    length_option: ClassVar[str | None] = None
    """The option that decides how long a run is; None means epochs or steps, whichever is set."""
    regroups: ClassVar[bool] = False
    """Whether its batch size counts for the user's own batches too, because it makes others of them."""

    lr: float | None = 1e-4
    """The highest learning rate."""
    epochs: int | None = None
    """Passes over the images that the method walks through; give these or steps."""
    steps: int | None = None
    """Optimisation steps; give these or epochs."""
    batch_size: int = 128
    """Images to a step."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """SGD with momentum, or AdamW."""
    momentum: float = 0.9
    """Of SGD."""
    weight_decay: float = 0.0
    """Pull of the weights to zero."""
    schedule: Schedule = "constant"
    """How the learning rate moves: one-cycle, cosine, step or constant."""
    augment: bool = True
    """Random crops and flips of the images."""
    batch_norm: BatchNormMode = "frozen"
    """BatchNorm's running statistics: frozen, or train to let them follow the batches."""

    def __post_init__(self) -> None:
        default = {field.name: field.default for field in dataclasses.fields(self)}
        if self.lr is None and default["lr"] is not None:
            raise UsageError(f"{self.name} needs a learning rate; leave lr out for its own, {default['lr']:g}.")
        if self.epochs is not None and self.steps is not None:
            # Whichever was given beats the other's default.
            if self.steps == default["steps"]:
                self.steps = None
            elif self.epochs == default["epochs"]:
                self.epochs = None
        if self.batch_norm not in ("frozen", "train"):
            raise UsageError(f"batch_norm must be frozen or train, but is {self.batch_norm!r}.")
        self.recipe(lr=self.lr if self.lr is not None else 1.0)

    def lengths(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """A shorter run and a longer one, for tuning: half and all of this one, or lengths 1 and 2."""
        name = self.length_option or ("steps" if self.steps is not None else "epochs")
        whole = int(getattr(self, name))
        half = max(1, round(whole / 2))
        return ({name: half}, {name: whole}) if half < whole else ({name: whole}, {name: 2 * whole})

    def recipe(self, **changes: Any) -> Recipe:
        """The options as a training recipe."""
        options: dict[str, Any] = {
            "name": self.name,
            "lr": self.lr,
            "epochs": self.epochs,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "optimizer": self.optimizer,
            "momentum": self.momentum,
            "nesterov": False,
            "weight_decay": self.weight_decay,
            "schedule": self.schedule,
            "augment": self.augment,
        }
        return Recipe(**(options | changes))

    def train(
        self,
        model: nn.Module,
        batches: Epochs | Any,
        objective: Callable[..., Tensor],
        run: Run,
        *,
        lr_factor: Callable[[str], float] | None = None,
        rate: Callable[[int], float] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **changes: Any,
    ) -> TrainingLog:
        """Train ``model`` in place with the options as they are, or as changed, and log the losses.

        Args:
            model: what to train.
            batches: from :meth:`Images.training`, or any sized iterable of tuples.
            objective: ``objective(model, *batch)`` gives the loss.
            run: seed, device, precision, progress.
            lr_factor: see :func:`pour.training.fit`.
            rate: the learning rate of a step, see :func:`pour.training.fit`.
            optimizer: one whose momentum goes on, see :func:`pour.training.fit`.
            changes: fields of the recipe to replace.
        """
        log = fit(
            model,
            batches,
            self.recipe(**changes),
            run,
            objective=objective,
            batch_norm=self.batch_norm,
            compile="encoder" if run.compile else False,
            lr_factor=lr_factor,
            rate=rate,
            optimizer=optimizer,
            description=self.name,
        )
        for step, loss in enumerate(log.losses, start=run.steps):
            run.log(step, loss=loss)
        return log
