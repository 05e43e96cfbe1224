"""Grad-CAM: the parts of an image that a class's score depends on (Selvaraju et al., 2017)."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

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
    """Layer whose output is the feature map."""

    name: str
    """Dotted path inside the model."""
    layout: Layout
    """Layout of the output: (N, C, H, W), (N, H, W, C), or (N, T, C) with the patches last."""
    grid: tuple[int, int]
    """Height and width of the map; for tokens, the number of patches down and across."""

    def maps(self, output: Tensor) -> Tensor:
        """Return the layer's output as (N, C, H, W), without class and register tokens."""
        if self.layout == "channels first":
            return output
        if self.layout == "channels last":
            return output.permute(0, 3, 1, 2)
        patches = output[:, output.shape[1] - math.prod(self.grid) :]
        return patches.transpose(1, 2).reshape(len(output), -1, *self.grid)


def grad_cam(
    model: nn.Module,
    images: Tensor,
    classes: Tensor,
    *,
    rows: Tensor | None = None,
    head: str | None = None,
    layer: MapLayer | None = None,
) -> Tensor:
    r"""Return each image's map of its class at the size of the feature map, (N, h, w), not negative and not scaled.

    With A the feature map and s the class's score, the map is
    $\mathrm{ReLU}(\sum_k \alpha_k A_k)$, $\alpha_k = \frac{1}{hw} \sum_{ij} \partial s / \partial A_{kij}$.

    Args:
        model: Classifier. It does not change.
        images: Images in uint8, or floats in [0, 1], (N, channels, H, W).
        classes: Class of each image's map, (N,).
        rows: Rows of a head, (C, d). If given, the score is row c times the encoder's features before a projector.
            It shows a class that the model's own head no longer sees.
        head: Name of the head, if pour cannot find it.
        layer: Layer of the feature map; by default the last layer before the head.

    Examples:
        >>> network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        >>> grad_cam(network, torch.rand(2, 1, 8, 8), torch.tensor([0, 2])).shape
        torch.Size([2, 6, 6])
    """
    network = unwrap(model)
    used_head = head_of(network, images, head)
    layer = layer or find_map_layer(network, images, head=head)
    labels = classes.to(device_of(network), torch.int64)
    if labels.shape != (len(images),) or int(labels.min()) < 0 or int(labels.max()) >= used_head.num_classes:
        raise UsageError(f"classes must be one index below {used_head.num_classes} to each of {len(images)} images.")
    with _forward(network, images, used_head, {layer.name}) as (outputs, raw, scores):
        chosen_scores = scores.gather(1, labels.unsqueeze(1)) if rows is None else raw * rows.to(raw)[labels]
        gradient = _gradient(chosen_scores.sum(), outputs[layer.name])
        maps, weights = layer.maps(outputs[layer.name].detach()), layer.maps(gradient).mean(dim=(2, 3), keepdim=True)
        return (weights * maps).sum(dim=1).clamp(min=0)


def find_map_layer(model: nn.Module, images: Tensor, *, head: str | None = None) -> MapLayer:
    """Return the last layer with a feature map that the head's features depend on everywhere.

    A vision transformer with a class token ignores the patches after the last attention. Its layer is the input of the
    last attention.

    Args:
        model: Classifier.
        images: Images, (N, channels, H, W). Only the first is used.
        head: Name of the head, if pour cannot find it.
    """
    network = unwrap(model)
    used_head = head_of(network, images, head)
    below = (f"{used_head.name}.", used_head.name)
    names = {name for name, _ in network.named_modules() if name != below[1] and not name.startswith(below[0])} - {""}
    size = (int(images.shape[-2]), int(images.shape[-1]))
    with _forward(network, images[:1], used_head, names) as (outputs, raw, _):
        # A fixed random mixture of all features, so that a projector or a single class does not matter.
        mixture = torch.randn(raw.shape[1], generator=torch.Generator().manual_seed(0)).to(raw)
        # If the head's features are not the channels of a map (VGG), any map with the image's proportions is accepted.
        for width in (used_head.num_features, None):
            for name, output in reversed(outputs.items()):
                layer = _layer(name, output, width, size)
                if layer is not None:
                    gradient = layer.maps(_gradient((raw @ mixture).sum(), output))
                    if bool((gradient.abs().amax(dim=(0, 1)) > 0).any()):
                        return layer
    raise UsageError(
        "The model has no feature map or tokens that its features depend on; Grad-CAM works on convolutional networks "
        "and vision transformers."
    )


def head_of(network: nn.Module, images: Tensor, head: str | None) -> Head:
    """Return the head of a model for these images."""
    if images.ndim != 4 or not len(images):
        raise UsageError(f"images have shape {tuple(images.shape)}; expected (N, channels, H, W).")
    return find_head(network, head=head, example=to_unit(images[:1].detach().to(device_of(network))))


def _gradient(score: Tensor, output: Tensor) -> Tensor:
    if not score.requires_grad:
        return torch.zeros_like(output)
    return torch.autograd.grad(score, output, retain_graph=True, allow_unused=True, materialize_grads=True)[0]


def _layer(name: str, output: Tensor, width: int | None, size: tuple[int, int]) -> MapLayer | None:
    """Return the layer of an output if it is a feature map with `width` channels; None accepts any number."""
    ratio = size[0] / size[1]
    if output.ndim == 3 and output.shape[2] == width:
        grid = _grid(output.shape[1], ratio)
        return None if grid is None else MapLayer(name, "tokens", grid)
    if output.ndim != 4:
        return None
    first, last = output.shape[2:], output.shape[1:3]
    # An attention matrix has one side per token and not the proportions of the image.
    fits = output.shape[1] == width if width else abs(first[0] / first[1] - ratio) <= 0.2 * ratio
    if fits and first.numel() > 1:
        return MapLayer(name, "channels first", (first[0], first[1]))
    if output.shape[3] == width and last.numel() > 1:
        return MapLayer(name, "channels last", (last[0], last[1]))
    return None


def _grid(tokens: int, ratio: float) -> tuple[int, int] | None:
    """Return the rows and columns of the patches after a few other tokens."""
    for others in range(min(9, tokens - 1)):
        height = round(math.sqrt((tokens - others) * ratio))
        width = (tokens - others) // height if height else 0
        if width and height * width == tokens - others > 1 and abs(height / width - ratio) <= 0.05 * ratio:
            return height, width
    return None


@contextlib.contextmanager
def _forward(
    network: nn.Module, images: Tensor, head: Head, names: set[str]
) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Run the model with gradients. Yield the outputs of the named layers in order, the raw features and the scores."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and output.ndim in (3, 4) and len(output) == len(images):
            # A module that runs twice moves to its last place.
            outputs.pop(name, None)
            outputs[name] = output

    with contextlib.ExitStack() as hooks:
        for name in names:
            hooks.enter_context(network.get_submodule(name).register_forward_hook(partial(keep, name)))
        with evaluating(network), torch.enable_grad(), tap_features(network, head) as tap:
            # The images require gradients, so that a frozen backbone has gradients too.
            batch = to_unit(images.detach().to(device_of(network))).clone().requires_grad_()
            scores = scores_of(network(batch), num_classes=head.num_classes)
            if tap.raw.ndim != 2 or scores.ndim != 2:
                raise UsageError("Grad-CAM here is for classifiers; this model has a score for every pixel or token.")
            yield outputs, tap.raw, scores
