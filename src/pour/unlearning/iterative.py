"""The base of methods that take optimisation steps."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pour.errors import UsageError
from pour.training.loop import BatchNormMode, fit
from pour.training.recipes import Recipe
from pour.training.schedule import Schedule
from pour.training.step import make_optimizer, trainable
from pour.unlearning.contract import Method, option

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor, nn

    from pour.training.loop import Epochs, TrainingLog
    from pour.training.run import Run
    from pour.unlearning.access import Images

__all__ = ["IterativeMethod"]


@dataclass(kw_only=True)
class IterativeMethod(Method):
    """A method that takes optimisation steps; subclasses set their own defaults."""

    rate_options: ClassVar[tuple[str, ...]] = ("lr",)
    """Options that are learning rates; tuning scales them together."""
    length_option: ClassVar[str | None] = None
    """Option that decides how long a run is; None means epochs or steps, whichever is set."""
    regroups: ClassVar[bool] = False
    """Whether the method makes batches of its own size from the user's batches."""
    whole_epochs: ClassVar[bool] = False
    """Whether the method trains epoch by epoch, so that it cannot count steps."""
    constant_rate: ClassVar[bool] = False
    """Whether the method calls the training loop once per epoch, so that a schedule would start again each time."""

    lr: float | None = option(1e-4, "Highest learning rate.")
    epochs: int | None = option(None, "Number of passes over the images of the method; set these or steps.")
    steps: int | None = option(None, "Number of optimisation steps; set these or epochs.")
    batch_size: int = option(128, "Number of images per step.")
    optimizer: Literal["sgd", "adamw"] = option("sgd", "Optimiser: SGD with momentum, or AdamW.")
    momentum: float = option(0.9, "Momentum of SGD.")
    weight_decay: float = option(0.0, "Strength of the pull of the weights towards zero.")
    schedule: Schedule = option("constant", "Course of the learning rate: one-cycle, cosine, step or constant.")
    augment: bool = option(True, "Crop and mirror the images at random.")
    batch_norm: BatchNormMode = option(
        "frozen", "Running statistics of BatchNorm: frozen, or train to let them follow the batches."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        default = {field.name: field.default for field in dataclasses.fields(self)}
        if self.lr is None and default["lr"] is not None:
            raise UsageError(f"{self.name} needs a learning rate; leave lr out for the default, {default['lr']:g}.")
        if self.epochs is not None and self.steps is not None:
            # The option that the user set replaces the default of the other option.
            if self.steps == default["steps"]:
                self.steps = None
            elif self.epochs == default["epochs"]:
                self.epochs = None
        if self.whole_epochs and self.epochs is None:
            raise UsageError(f"{self.name} makes whole passes over the images; pass epochs, not steps.")
        if self.constant_rate and self.schedule != "constant":
            raise UsageError(
                f"{self.name} trains pass by pass, and a schedule would restart each time; leave it constant."
            )
        self.as_recipe(lr=self.lr if self.lr is not None else 1.0)

    def lengths(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of a shorter and a longer run for tuning: half and all of this run, or lengths 1 and 2."""
        name = self.length_option or ("steps" if self.steps is not None else "epochs")
        whole = int(getattr(self, name))
        half = max(1, round(whole / 2))
        return ({name: half}, {name: whole}) if half < whole else ({name: whole}, {name: 2 * whole})

    def as_recipe(self, **changes: Any) -> Recipe:
        """Return the options as a training recipe, with `changes` of its fields."""
        names = ("name", "lr", "epochs", "steps", "batch_size", "optimizer", "momentum", "weight_decay", "schedule")
        options = {name: getattr(self, name) for name in (*names, "augment")}
        return Recipe(**(options | {"nesterov": False} | changes))

    def loaders(self, run: Run, *sources: Images, sizes: Sequence[int] | None = None) -> list[Epochs]:
        """Return shuffled batches of each source, with a different order for each.

        Args:
            run: Seed and device.
            sources: Images.
            sizes: Number of images per batch of each source; by default `batch_size`.
        """
        sized = zip(sources, sizes or [self.batch_size] * len(sources), strict=True)
        return [
            images.training(run, batch_size=size, augment=self.augment, salt=salt)
            for salt, (images, size) in enumerate(sized)
        ]

    def optimizer_for(self, model: nn.Module, run: Run, **changes: Any) -> torch.optim.Optimizer:
        """Return an optimiser for several calls of `train`. Move `model` to the device.

        Args:
            model: Network to train.
            run: Device.
            changes: Fields of the recipe to replace.
        """
        parameters = list(trainable(model.to(run.torch_device)).values())
        return make_optimizer({1.0: parameters}, self.as_recipe(**changes), run.torch_device)

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
        """Train `model` in place with the options of the method and with `changes`. Log the losses.

        Args:
            model: Network to train.
            batches: Batches from `loaders`, or any sized iterable of tuples.
            objective: Loss of a batch, `objective(model, *batch)`.
            run: Seed, device, precision and progress bar.
            lr_factor: Factor of the learning rate by parameter name, see `pour.training.fit`.
            rate: Learning rate of a step, see `pour.training.fit`.
            optimizer: Optimiser that keeps its momentum over several calls, see `pour.training.fit`.
            changes: Fields of the recipe to replace.
        """
        log = fit(
            model,
            batches,
            self.as_recipe(**changes),
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
