"""One optimisation step, captured in a CUDA graph on a GPU."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = ["TrainingStep", "float32_outputs", "make_optimizer", "trainable"]

# Number of uncaptured first steps, which compile, choose algorithms and create the buffers of the optimiser.
_STEPS_BEFORE_CAPTURE = 3
# A graph occupies the memory of a whole step, so the number of batch sizes with a graph is limited.
_MOST_GRAPHS = 6


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name. Raise UsageError if all are frozen."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise UsageError("The model has no parameter that may be trained; set requires_grad on some.")
    return parameters


def make_optimizer(
    parameters: Mapping[float, list[nn.Parameter]], recipe: Recipe, device: torch.device
) -> torch.optim.Optimizer:
    """Return the optimiser of a recipe. On a GPU it is fused and keeps its learning rates there, for CUDA graphs.

    Args:
        parameters: Parameters by the factor of their learning rate.
        recipe: Optimiser, momentum, weight decay.
        device: Device of the parameters.
    """
    on_gpu = device.type == "cuda"
    groups: list[dict[str, Any]] = [
        {
            "params": members,
            "lr": torch.tensor(recipe.lr * factor, device=device) if on_gpu else recipe.lr * factor,
            "lr_factor": factor,
        }
        for factor, members in parameters.items()
    ]
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, weight_decay=recipe.weight_decay, fused=on_gpu or None, capturable=on_gpu)
    return torch.optim.SGD(
        groups,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
        fused=on_gpu or None,
    )


def float32_outputs(model: nn.Module, *, enabled: bool = True) -> AbstractContextManager[object]:
    """Convert the outputs of `model` to float32 inside the block, so that losses are computed in float32."""
    if not enabled:
        return contextlib.nullcontext()
    return model.register_forward_hook(lambda _module, _inputs, output: _as_float32(output))


def _as_float32(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.float() if output.is_floating_point() else output
    if isinstance(output, MutableMapping):
        for name, value in output.items():
            output[name] = _as_float32(value)
        return output
    return tuple(map(_as_float32, output)) if type(output) is tuple else output


_Kind = tuple[tuple[torch.Size, torch.dtype], ...]


@dataclass(frozen=True)
class _Recorded:
    """Captured step for batches of the same shapes and dtypes."""

    graph: torch.cuda.CUDAGraph
    batch: tuple[Tensor, ...]
    """Input of the graph. A step copies its batch there."""
    loss: Tensor
    """Output of the graph."""


@dataclass(eq=False)
class TrainingStep:
    """Forward pass, backward pass and update on one batch.

    On a GPU the host would be the bottleneck: a step on 512 small images takes milliseconds and launches hundreds of
    kernels. Therefore the first steps run normally, then one step is captured, and each later batch is copied into its
    buffers and replayed. There is one captured step per batch size.
    """

    run: Run
    """Device and precision."""
    model: nn.Module
    """Network on the run's device."""
    optimizer: torch.optim.Optimizer
    """Optimiser from `make_optimizer`."""
    objective: Callable[..., Tensor]
    """Function `objective(model, *batch)` that returns the loss."""
    clip: float | None
    """Largest norm of the gradient."""
    graph: bool
    """Capture the step."""

    def __post_init__(self) -> None:
        self._warm: Counter[_Kind] = Counter()
        self._largest = 0
        self._recorded: dict[_Kind, _Recorded] = {}
        # One stream for the first steps and the capture, because autograd keeps the stream of each sum of gradients.
        self._stream: Any = torch.cuda.Stream() if self.graph else None  # type: ignore[no-untyped-call]

    def set_learning_rate(self, lr: float) -> None:
        """Use `lr` from the next step on."""
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["lr_factor"])
            else:
                group["lr"] = lr * group["lr_factor"]

    def __call__(self, *batch: Tensor) -> Tensor:
        """Take one step and return its loss, which the next step overwrites."""
        # cuDNN measures its algorithms for seconds per size, so only for batches of the largest size so far. A smaller
        # batch is usually the last of an epoch, and too rare for this time.
        size = len(batch[0]) if batch else 0
        flags = torch.backends.cudnn
        before = flags.benchmark
        flags.benchmark = before and size >= self._largest
        self._largest = max(self._largest, size)
        try:
            return self._take(*batch)
        finally:
            flags.benchmark = before

    def _take(self, *batch: Tensor) -> Tensor:
        if not self.graph:
            return self._step(*batch)
        kind = tuple((tensor.shape, tensor.dtype) for tensor in batch)
        recorded = self._recorded.get(kind)
        if recorded is None and self._warm[kind] < _STEPS_BEFORE_CAPTURE:
            self._warm[kind] += 1
            return self._warm_step(*batch)
        if recorded is None and len(self._recorded) == _MOST_GRAPHS:
            return self._step(*batch)
        if recorded is None:
            recorded = self._recorded[kind] = self._record(*batch)
        for new, old in zip(batch, recorded.batch, strict=True):
            old.copy_(new, non_blocking=True)
        recorded.graph.replay()
        return recorded.loss

    def _step(self, *batch: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        return self._forward_backward_update(*batch)

    def _forward_backward_update(self, *batch: Tensor) -> Tensor:
        # This context contains the whole objective, so that a teacher computes in the same precision as its student.
        with self.run.autocast(), float32_outputs(self.model, enabled=self.run.precision != "fp32"):
            loss = self.objective(self.model, *batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.clip is not None:
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.clip)
        self.optimizer.step()
        return loss.detach()

    def _warm_step(self, *batch: Tensor) -> Tensor:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            loss = self._step(*batch)
        torch.cuda.current_stream().wait_stream(self._stream)
        return loss

    def _record(self, *batch: Tensor) -> _Recorded:
        static = tuple(tensor.clone(memory_format=torch.preserve_format) for tensor in batch)
        self.optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        # Other threads, such as the thread that pins a DataLoader's batches, can allocate memory during the capture.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            loss = self._forward_backward_update(*static)
        return _Recorded(graph, static, loss)
