"""Read the features of a network: the output of the encoder, and the input of the head."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.data.samples import as_batches
from pour.errors import PourError, UsageError
from pour.models.head import Head, named_head
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Features", "Tap", "extract_features", "fast_encoder", "on_device", "tap_features", "to_unit"]

# Number of images per batch of a dataset.
_BATCH = 64


def to_unit(images: Tensor) -> Tensor:
    """Return images as floats in [0, 1]: uint8 is divided by 255, floats do not change.

    Examples:
        >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([0., 1.])
    """
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise UsageError(f"Images are {images.dtype}; pass uint8 from 0 to 255 or floats from 0 to 1.")
    return images.to(torch.float32) / 255


class Tap:
    """The features that entered the head in the model's last call. Gradients flow through them."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._inputs: dict[nn.Module, Tensor] = {}

    @property
    def raw(self) -> Tensor:
        """Output of the encoder, before the projector if there is one."""
        return self._inputs_of([head.module for head in self.head.each])

    @property
    def features(self) -> Tensor:
        """Input of the linear layer, after the projector if there is one."""
        return self._inputs_of([head.layer for head in self.head.each])

    def _inputs_of(self, modules: list[nn.Module]) -> Tensor:
        inputs = [self._input_of(module) for module in modules]
        return inputs[0] if len(inputs) == 1 else torch.cat(inputs, dim=self.head.dim)

    def _input_of(self, module: nn.Module) -> Tensor:
        if module not in self._inputs:
            raise PourError(
                f"The head {self.head.name!r} has not run in this block, or the model computes its scores from the "
                "head's weight without calling the head; call the model first, without torch.compile."
            )
        return self._inputs[module]

    def _keep_input(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._inputs[module] = inputs[0]


@contextlib.contextmanager
def tap_features(model: nn.Module, head: str | Head | None = None) -> Iterator[Tap]:
    """Record the features that enter the head of `model` while the block runs.

    Args:
        model: Any classifier.
        head: Head, or its dotted name. By default `find_head` finds it.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> with tap_features(model) as tap:
        ...     _ = model(torch.ones(2, 2, 2))
        >>> tap.features.shape
        torch.Size([2, 4])
    """
    # The head may have been found in a copy of the model. Its module then belongs to the copy, so its name is used.
    tap = Tap(named_head(model, head.names if isinstance(head, Head) else head))
    with contextlib.ExitStack() as hooks:
        for module in {module for each in tap.head.each for module in (each.module, each.layer)}:
            hooks.callback(module.register_forward_pre_hook(tap._keep_input).remove)
        yield tap


@dataclass(frozen=True)
class Features:
    """Features, scores and labels of the images of a data set, in their order."""

    features: Tensor
    """Input of the linear layer, after the projector: (N, d), or (N, ..., d) and (N, d, H, W) for tokens and maps."""
    raw: Tensor
    """Output of the encoder, before the projector. The same tensor as `features` if there is no projector."""
    scores: Tensor
    """Class scores, (N, C)."""
    labels: Tensor
    """Class indices, (N,)."""

    def __len__(self) -> int:
        return len(self.features)


def extract_features(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    head: str | Head | None = None,
    device: str | torch.device | None = None,
) -> Features:
    """Run `model` once over `batches` and return features, raw features, scores and labels.

    The model runs in evaluation mode without gradients. Afterwards the mode of every module is restored. The results
    are on the device of the run, as ordinary tensors that later training may use.

    Args:
        model: Any classifier.
        batches: A dataset, or batches of images (uint8, or floats in [0, 1]) and labels, such as a `DataLoader`.
        head: Head, or its dotted name. By default `find_head` finds it.
        device: Device of the run. The model is moved to it, and back afterwards. By default the model is not moved.

    Examples:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> batch = (torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5) % 3)
        >>> extract_features(model, [batch, batch]).scores.shape
        torch.Size([10, 3])
    """
    parts = defaultdict[str, list[Tensor]](list)
    network = unwrap(model)
    with on_device(network, device) as place, tap_features(network, head) as tap, evaluating(network):
        for images, labels in as_batches(batches, _BATCH):
            with torch.inference_mode():
                output = network(to_unit(images.to(place, non_blocking=True)))
            parts["features"].append(tap.features)
            parts["scores"].append(scores_of(output, num_classes=tap.head.num_classes))
            parts["labels"].append(labels.to(place, non_blocking=True))
            if tap.raw is not tap.features:
                parts["raw"].append(tap.raw)
    if not sum(map(len, parts["labels"])):
        raise UsageError("The batches are empty, so there are no features; pass some images.")
    # Tensors are joined outside of inference mode, so that probes and attacks may train on the result.
    joined = {name: torch.cat(tensors) for name, tensors in parts.items()}
    return Features(**{"raw": joined["features"], **joined})


@contextlib.contextmanager
def fast_encoder(model: nn.Module, head: str, *, enabled: bool = True) -> Iterator[None]:
    """Multiply matrices in TF32 inside the block, as convolutions do by default. The head stays in float32.

    cuDNN measures its algorithms and takes the fastest.

    Args:
        model: Network that runs in the block.
        head: Dotted name of its head; "" for a model that is a head itself.
        enabled: Whether the block changes the precision.
    """
    before = torch.get_float32_matmul_precision()
    with contextlib.ExitStack() as restored:
        if enabled and head:
            layer = model.get_submodule(head)
            restored.enter_context(torch.backends.cudnn.flags(enabled=True, benchmark=True))
            restored.callback(torch.set_float32_matmul_precision, before)
            restored.enter_context(
                layer.register_forward_pre_hook(lambda *_: torch.set_float32_matmul_precision(before))
            )
            restored.enter_context(layer.register_forward_hook(lambda *_: torch.set_float32_matmul_precision("high")))
            torch.set_float32_matmul_precision("high")
        yield


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the model's first parameter or buffer, or the CPU if it has none."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextlib.contextmanager
def on_device(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """Move `model` to a device inside the block, and back afterwards. Yield the device."""
    home = device_of(model)
    place = home if device is None else torch.device(device)
    if place == home:
        yield place
        return
    model.to(place)
    try:
        yield place
    finally:
        model.to(home)
