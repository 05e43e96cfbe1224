"""Grad-CAM: where in an image a class's score comes from (Selvaraju et al., 2017), for convolutions and for tokens."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from pour.errors import UsageError
from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import device_of, tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pour.models.head import Head

__all__ = ["MapLayer", "find_map_layer", "grad_cam"]

Layout = Literal["channels first", "channels last", "tokens"]


@dataclass(frozen=True)
class MapLayer:
    """The layer whose output is the feature map."""

    name: str
    """Dotted path inside the model."""
    layout: Layout
    """(N, C, H, W), (N, H, W, C), or (N, T, C) with the patches last."""
    grid: tuple[int, int]
    """Height and width of the map; for tokens, of the patches."""

    def maps(self, output: Tensor) -> Tensor:
        """The layer's output as (N, C, H, W); class and register tokens are left out."""
        if self.layout == "channels first":
            return output
        if self.layout == "channels last":
            return output.permute(0, 3, 1, 2)
        height, width = self.grid
        patches = output[:, output.shape[1] - height * width :]
        return patches.transpose(1, 2).reshape(len(output), -1, height, width)


def grad_cam(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    *,
    rows: Tensor | None = None,
    head: str | None = None,
    layer: MapLayer | None = None,
) -> Tensor:
    r"""Compute each image's map of its class, (N, h, w) at the feature map's own size, not negative, not scaled.

    With A the feature map and s the class's score, the map is
    :math:`\mathrm{ReLU}(\sum_k \alpha_k A_k)`, :math:`\alpha_k = \frac{1}{hw} \sum_{ij} \partial s / \partial A_{kij}`.

    Args:
        model: any classifier; it is left as it was.
        images: (N, channels, H, W), uint8, or floats in [0, 1].
        classes: (N,) the class to ask about.
        rows: (C, d) head rows. The score is then row c times the encoder's features, before any projector, so that a
            class that the model's own head no longer sees can still be looked for.
        head: name of the head, where it is not found by itself.
        layer: the feature map; by default the last before the head.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        >>> grad_cam(network, torch.rand(2, 1, 8, 8), torch.tensor([0, 2])).shape
        torch.Size([2, 6, 6])
    """
    network = unwrap(model)
    found = head_of(network, images, head)
    layer = layer or find_map_layer(network, images, head=head)
    asked = classes.to(device_of(network), torch.int64)
    if asked.shape != (len(images),) or (
        len(asked) and not 0 <= int(asked.min()) <= int(asked.max()) < found.num_classes
    ):
        raise UsageError(f"classes must be one index below {found.num_classes} to each of {len(images)} images.")
    with _run(network, images, found, {layer.name}) as (outputs, raw, scores):
        own = scores.gather(1, asked.unsqueeze(1)) if rows is None else raw * rows.to(raw)[asked]
        gradient = _gradient(own.sum(), outputs[layer.name])
        maps, weights = layer.maps(outputs[layer.name].detach()), layer.maps(gradient).mean(dim=(2, 3), keepdim=True)
        return (weights * maps).sum(dim=1).clamp(min=0)


def find_map_layer(model: nn.Module, images: Tensor, *, head: str | None = None) -> MapLayer:
    """Find the last feature map that the head's features depend on everywhere.

    In a vision transformer that reads its class token, what the patches become after the last attention no longer
    matters, so that this is the input of the last attention.

    Args:
        model: any classifier.
        images: (N, channels, H, W); the first one is looked at.
        head: name of the head, where it is not found by itself.
    """
    network = unwrap(model)
    found = head_of(network, images, head)
    below = {f"{found.name}.{name}" if name else found.name for name, _ in found.module.named_modules()}
    names = {name for name, _ in network.named_modules() if name and name not in below}
    with _run(network, images[:1], found, names) as (outputs, raw, _):
        # A fixed random mixture, so that no direction that a projector or a class lacks decides.
        mixture = torch.randn(raw.shape[1], generator=torch.Generator().manual_seed(0)).to(raw)
        size = (int(images.shape[-2]), int(images.shape[-1]))
        wide = {name: _layer(name, output, found.num_features, size) for name, output in outputs.items()}
        # Where the head's features are not the map's channels (VGG), any map of the right proportions will do.
        loose = {name: _loose(name, output, size) for name, output in outputs.items()}
        for candidates in (wide, loose):
            for name, layer in reversed(list(candidates.items())):
                if layer is not None and _matters(layer.maps(_gradient((raw @ mixture).sum(), outputs[name]))):
                    return layer
    raise UsageError(
        "The model has no feature map or tokens that its features depend on; Grad-CAM works on convolutional networks "
        "and vision transformers."
    )


def head_of(network: nn.Module, images: Tensor, head: str | None) -> Head:
    """The head of a model that is about to run on these images."""
    if images.ndim != 4 or not len(images):
        raise UsageError(f"images have shape {tuple(images.shape)}; expected (N, channels, H, W).")
    return find_head(network, head=head, example=to_unit(images[:1].detach().to(device_of(network))))


def _matters(gradient: Tensor) -> bool:
    return bool((gradient.abs().amax(dim=(0, 1)) > 0).any())


def _gradient(score: Tensor, output: Tensor) -> Tensor:
    if not score.requires_grad:
        return torch.zeros_like(output)
    (gradient,) = torch.autograd.grad(score, output, retain_graph=True, allow_unused=True)
    return torch.zeros_like(output) if gradient is None else gradient


def _layer(name: str, output: Tensor, width: int, size: tuple[int, int]) -> MapLayer | None:
    if output.ndim == 4 and output.shape[1] == width and output[0, 0].numel() > 1:
        return MapLayer(name, "channels first", (output.shape[2], output.shape[3]))
    if output.ndim == 4 and output.shape[3] == width and output[0, ..., 0].numel() > 1:
        return MapLayer(name, "channels last", (output.shape[1], output.shape[2]))
    if output.ndim == 3 and output.shape[2] == width:
        grid = _grid(output.shape[1], size)
        return None if grid is None else MapLayer(name, "tokens", grid)
    return None


def _loose(name: str, output: Tensor, size: tuple[int, int]) -> MapLayer | None:
    if output.ndim != 4 or output[0, 0].numel() < 2:
        return None
    height, width = output.shape[2], output.shape[3]
    # Maps of attention have one side to a token, not to a stretch of the image.
    fits = abs(height / width - size[0] / size[1]) <= 0.2 * size[0] / size[1]
    return MapLayer(name, "channels first", (height, width)) if fits else None


def _grid(tokens: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """The patches' rows and columns, the few other tokens standing before them."""
    for others in range(min(9, tokens - 1)):
        height = round(math.sqrt((tokens - others) * size[0] / size[1]))
        if height and (tokens - others) % height == 0:
            width = (tokens - others) // height
            if width > 0 and abs(height / width - size[0] / size[1]) <= 0.05 * size[0] / size[1] and height * width > 1:
                return height, width
    return None


@contextlib.contextmanager
def _run(
    network: nn.Module, images: Tensor, head: Head, names: set[str]
) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Run the model with gradients; yield the named layers' outputs as they ran, the raw features and the scores."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == len(images):
                # Taken out first: a module that runs twice stands where it ran last.
                outputs.pop(name, None)
                outputs[name] = output

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in network.named_modules() if name in names]
    try:
        with evaluating(network), torch.enable_grad(), tap_features(network, head) as tap:
            # The images ask for gradients so that a frozen backbone has them too.
            batch = to_unit(images.detach().to(device_of(network))).clone().requires_grad_()
            scores = scores_of(network(batch), num_classes=head.num_classes)
            if tap.raw.ndim != 2 or scores.ndim != 2:
                raise UsageError("Grad-CAM here is for classifiers; this model has a score for every pixel or token.")
            yield outputs, tap.raw, scores
    finally:
        for handle in handles:
            handle.remove()
