"""Settings of an optimisation: seed, device, precision, progress bar, and the log of its values."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, SupportsIndex, get_args

import torch

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn

__all__ = ["Precision", "Run", "resolve_device"]

Precision = Literal["fp32", "bf16"]
_SEEDS = 2**63


def resolve_device(device: str | torch.device | None = None) -> torch.device:
    """Return the requested device, by default the first GPU if there is one.

    Examples:
        >>> resolve_device("cpu")
        device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"{device!r} is not a device; use cpu, cuda or cuda:0.") from error
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise UsageError(f'{device} was requested, but torch finds no GPU; use device="cpu".')
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"{device} was requested, but this machine has only {torch.cuda.device_count()} GPUs.")
    if resolved.type not in ("cpu", "cuda"):
        raise UsageError(f"{device} is not supported; use cpu or cuda.")
    return resolved


@dataclass(kw_only=True)
class Run:
    """Seed, device, precision and progress bar of a computation, and the values that it logged.

    Examples:
        >>> run = Run(seed=3, device="cpu", progress=False)
        >>> run.log(0, loss=2.5)
        >>> run.history
        [{'step': 0, 'loss': 2.5}]
    """

    seed: int = 0
    """Seed of all random numbers."""
    device: str | torch.device | None = None
    """Device; None chooses the GPU, if present."""
    precision: Precision | None = None
    """fp32, or bf16 with float32 weights. None chooses bf16 on a GPU that supports it."""
    progress: bool = True
    """Show a progress bar."""
    compile: bool = False
    """Let methods compile the encoder that they train: for many runs of one architecture in one process, on a GPU."""
    history: list[dict[str, float]] = field(default_factory=list)
    """Logged values, in order."""
    choices: dict[str, str | float | None] = field(default_factory=dict)
    """Options that a method chose by a measurement. The history of the model contains them."""
    on_step: Callable[[nn.Module, int], None] | None = None
    """Function that is called after every step with the model and the number of steps; it must not change the model."""

    def __post_init__(self) -> None:
        if not isinstance(self.seed, SupportsIndex) or not 0 <= self.seed < _SEEDS:
            raise UsageError(f"A seed must be a whole number from 0 to {_SEEDS - 1}, but is {self.seed}.")
        self.device = resolve_device(self.device)
        if self.precision is None:
            self.precision = "bf16" if self.device.type == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
        if self.precision not in get_args(Precision):
            raise UsageError(f"The precision must be fp32 or bf16, but is {self.precision!r}.")

    @property
    def torch_device(self) -> torch.device:
        """The resolved device."""
        return torch.device(self.device or "cpu")

    @property
    def steps(self) -> int:
        """Number of logged optimisation steps."""
        return sum("loss" in entry for entry in self.history)

    def log(self, step: int, **values: float) -> None:
        """Log the values of one step."""
        self.history.append({"step": step, **values})

    def choose(self, **options: str | float | None) -> None:
        """Log the options that a method chose."""
        self.choices.update(options)

    def autocast(self) -> torch.autocast:
        """Return a context whose operations compute in the run's precision."""
        return torch.autocast(self.torch_device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    @contextlib.contextmanager
    def seeded(self) -> Iterator[None]:
        """Seed torch's random numbers inside the block. Outside they continue as before."""
        device = self.torch_device
        with torch.random.fork_rng([device.index or 0] if device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            yield
