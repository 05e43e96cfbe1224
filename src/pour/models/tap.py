"""Tapping features: what the encoder gives and what the head sees."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pour.data.samples import checked_batch
from pour.errors import PourError, UsageError
from pour.models.head import Head, find_head
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Features", "Tap", "extract_features", "fast_encoder", "on_device", "tap_features", "to_unit"]


def to_unit(images: Tensor) -> Tensor:
    """Images as floats in [0, 1]: uint8 is divided by 255, floats pass through unchanged.

    Example:
        >>> to_unit(torch.tensor([0, 255], dtype=torch.uint8))
        tensor([0., 1.])
    """
    if images.is_floating_point():
        return images
    if images.dtype != torch.uint8:
        raise UsageError(f"Images are {images.dtype}; give uint8 from 0 to 255 or floats from 0 to 1.")
    return images.to(torch.float32) / 255


class Tap:
    """What passed the head in the model's last call; gradients flow through both tensors."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self._raw: Tensor | None = None
        self._features: Tensor | None = None

    @property
    def raw(self) -> Tensor:
        """The encoder's output, before the projector if there is one."""
        return self._got(self._raw)

    @property
    def features(self) -> Tensor:
        """What the linear layer sees, after the projector if there is one."""
        return self._got(self._features)

    def _got(self, tensor: Tensor | None) -> Tensor:
        if tensor is None:
            raise PourError(
                f"The head {self.head.name!r} has not run since it was tapped; call the model first (uncompiled: a "
                "compiled model does not run hooks). A model that computes its scores from the head's weight, without "
                "calling the head, cannot be tapped."
            )
        return tensor

    def _keep_raw(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._raw = inputs[0]

    def _keep_features(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self._features = inputs[0]


@contextlib.contextmanager
def tap_features(model: nn.Module, head: str | Head | None = None) -> Iterator[Tap]:
    """Record what the head of ``model`` sees while the block runs; the hooks are released whatever happens.

    Args:
        model: Any classifier.
        head: Its head or the head's dotted name; found by :func:`find_head` if left out.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> with tap_features(model) as tap:
        ...     _ = model(torch.ones(2, 2, 2))
        >>> tap.features.shape
        torch.Size([2, 4])
    """
    # A head found in a copy of the model names the place; its module is the copy's.
    found = find_head(model, head=head.name if isinstance(head, Head) else head)
    tap = Tap(found)
    handles = [
        found.module.register_forward_pre_hook(tap._keep_raw),
        found.layer.register_forward_pre_hook(tap._keep_features),
    ]
    try:
        yield tap
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Features:
    """A model's view of a data set, image by image in the order given."""

    features: Tensor
    """What the head sees, after the projector: (N, d), or (N, ..., d) and (N, d, H, W) for tokens and maps."""
    raw: Tensor
    """The encoder's output before the projector; the same tensor where there is none."""
    scores: Tensor
    """Class scores, (N, C)."""
    labels: Tensor
    """Class indices, (N,)."""

    def __len__(self) -> int:
        return len(self.features)


@dataclass
class _Parts:
    features: list[Tensor] = field(default_factory=list)
    raw: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)


def extract_features(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    head: str | Head | None = None,
    device: str | torch.device | None = None,
    limit: int | None = None,
) -> Features:
    """Run ``model`` once over ``batches`` and keep features, raw features, scores and labels.

    The model runs in evaluation mode without gradients, and every module gets its own mode back. The results stay on
    the device of the run, as ordinary tensors that later training may use.

    Args:
        model: Any classifier.
        batches: Pairs of images (uint8, or floats in [0, 1]) and labels; a ``DataLoader`` will do.
        head: The head or its name; found by :func:`find_head` if left out.
        device: Where to run; the model goes there for the run and comes back. By default where the model is.
        limit: Stop after this many images.

    Example:
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
        >>> batch = (torch.zeros(5, 1, 2, 2, dtype=torch.uint8), torch.arange(5) % 3)
        >>> extract_features(model, [batch, batch], limit=7).scores.shape
        torch.Size([7, 3])
    """
    if limit is not None and limit < 1:
        raise UsageError(f"limit is {limit}; give the number of images to take, at least 1.")
    parts = _Parts()
    taken = 0
    network = unwrap(model)
    with on_device(network, device) as place, tap_features(network, head) as tap, evaluating(network):
        for images, labels in checked_batches(batches):
            if limit is not None and taken >= limit:
                break
            left = len(images) if limit is None else min(len(images), limit - taken)
            with torch.inference_mode():
                output = network(to_unit(images[:left].to(place, non_blocking=True)))
            scores = scores_of(output, num_classes=tap.head.num_classes)
            parts.scores.append(scores)
            parts.features.append(tap.features)
            if tap.raw is not tap.features:
                parts.raw.append(tap.raw)
            parts.labels.append(labels[:left].to(place, non_blocking=True))
            taken += left
    if not taken:
        raise UsageError("There are no images to take features from; the batches are empty.")
    # Joined outside inference mode, so that probes and attacks may train on the result.
    features = torch.cat(parts.features)
    raw = torch.cat(parts.raw) if parts.raw else features
    return Features(features=features, raw=raw, scores=torch.cat(parts.scores), labels=torch.cat(parts.labels))


@contextlib.contextmanager
def fast_encoder(model: nn.Module, head: str, *, enabled: bool = True) -> Iterator[None]:
    """Multiply matrices in TF32, as convolutions do by default; the head, whose scores decide, stays in float32.

    Args:
        model: runs while the block does.
        head: the dotted name of its head; "" for a model that is one.
        enabled: False does nothing.
    """
    before = torch.get_float32_matmul_precision()
    if not enabled or not head:
        yield
        return
    layer = model.get_submodule(head)
    hooks = [
        layer.register_forward_pre_hook(lambda *_: torch.set_float32_matmul_precision(before)),
        layer.register_forward_hook(lambda *_: torch.set_float32_matmul_precision("high")),
    ]
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for hook in hooks:
            hook.remove()


def checked_batches(batches: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (images, labels) pairs, refusing anything else with a sentence."""
    return map(checked_batch, batches)


def device_of(model: nn.Module) -> torch.device:
    """Where the model's first parameter or buffer is."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextlib.contextmanager
def on_device(model: nn.Module, device: str | torch.device | None) -> Iterator[torch.device]:
    """Have ``model`` on a device inside the block and where it was afterwards, whatever happens."""
    home = device_of(model)
    place = home if device is None else torch.device(device)
    moved = place != home
    if moved:
        model.to(place)
    try:
        yield place
    finally:
        if moved:
            model.to(home)
