"""A segmentation network runs once over the test scenes; every metric of the audit reads what is kept here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pour.data.scene_loader import SceneLoader
from pour.errors import UsageError
from pour.metrics._sampling import stratified_sample
from pour.metrics.segmentation import pixel_confusion
from pour.models.copy_and_swap import in_float32
from pour.models.head_on_images import head_on_images
from pour.models.modes import evaluating
from pour.models.networks.segmentation import SegmentationModel
from pour.models.output import scores_of
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.tap import on_device, tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, nn

    from pour.auditing.features import Side, View
    from pour.data.scenes import Scenes
    from pour.training.run import Run

__all__ = ["PixelSample", "TappedScenes", "draw_pixels", "tap_scenes"]

_GPU_BATCH = 32
_CPU_BATCH = 4
# Number of scenes to verify the head on.
_VERIFIED = 2


@dataclass(frozen=True)
class PixelSample:
    """Pixels to read features at: image, row and column of each, (n, 3), in the order of the images."""

    places: Tensor

    def of_images(self, first: int, last: int) -> Tensor:
        """The places in images ``first`` to ``last`` - 1, the images counted from ``first``."""
        start, stop = torch.searchsorted(self.places[:, 0].contiguous(), torch.tensor([first, last])).tolist()
        return self.places[start:stop] - torch.tensor([first, 0, 0])


def draw_pixels(scenes: Scenes, forgotten: tuple[int, ...], count: int, seed: int) -> dict[Side, PixelSample]:
    """Draw at most ``count`` pixels of the forgotten and of the retained classes.

    Every class has its share of its side, and every pixel of a class the same chance, so that what is measured on the
    sample has the expectation of what all pixels would give.

    Args:
        scenes: whose masks say what a pixel is.
        forgotten: the forgotten classes.
        count: pixels to a side.
        seed: fixes the draw.
    """
    masks = torch.as_tensor(scenes.masks)
    gone = torch.isin(masks, torch.tensor(forgotten, dtype=masks.dtype))
    found: dict[Side, PixelSample] = {}
    sides: dict[Side, Tensor] = {"forget": gone, "retain": ~gone & (masks < scenes.num_classes)}
    for salt, (side, chosen) in enumerate(sides.items()):
        candidates = chosen.flatten().nonzero().squeeze(1)
        if not len(candidates):
            raise UsageError(
                f"The scenes show no pixel of the {'forgotten' if side == 'forget' else 'retained'} classes."
            )
        generator = torch.Generator().manual_seed(2 * seed + salt)
        picked = candidates[stratified_sample(masks.flatten()[candidates].long(), count, generator)]
        found[side] = PixelSample(torch.stack(torch.unravel_index(picked, masks.shape), dim=1))
    return found


@dataclass(frozen=True)
class TappedScenes:
    """What one model makes of the scenes."""

    confusions: Tensor
    """Pixels by image, true and predicted class, (n, C, C)."""
    rows: Mapping[tuple[Side, View], Tensor]
    """Features at the drawn pixels, (m, d) float32; raw ones only where a projector stands before the head."""
    projected: bool

    def view(self, side: Side, view: View) -> Tensor:
        """Features of a side; without a projector the raw ones are those that the head sees."""
        return self.rows[side, view if self.projected else "features"]


def tap_scenes(model: nn.Module, scenes: Scenes, sample: Mapping[Side, PixelSample], run: Run) -> TappedScenes:
    """Run ``model`` once over ``scenes``; count its answers and read its features at the drawn pixels."""
    network = in_float32(unwrap(model))
    head = head_on_images(network, torch.as_tensor(scenes.images[:_VERIFIED]).permute(0, 3, 1, 2))
    if head.dim != 1:
        raise UsageError("The model gives one answer to an image; segmentation needs a head that is a 1x1 convolution.")
    if head.num_classes != scenes.num_classes:
        raise UsageError(f"The model has {head.num_classes} classes, the data {scenes.num_classes}.")
    projected = isinstance(head.module, ProjectedHead)
    size = _GPU_BATCH if run.torch_device.type == "cuda" else _CPU_BATCH
    confusions: list[Tensor] = []
    parts: dict[tuple[Side, View], list[Tensor]] = {}
    first = 0
    with (
        on_device(network, run.torch_device),
        evaluating(network),
        torch.inference_mode(),
        torch.autocast(run.torch_device.type, torch.bfloat16, enabled=run.precision == "bf16"),
        tap_features(network, head) as tap,
    ):
        for images, labels in SceneLoader(scenes, batch_size=size, device=run.torch_device):
            answers = scores_of(network(to_unit(images))).argmax(dim=1)
            confusions += [pixel_confusion(a, t, head.num_classes) for a, t in zip(answers, labels, strict=True)]
            views: dict[View, Tensor] = {"features": tap.features}
            if projected:
                views["raw"] = tap.raw
            for side, pixels in sample.items():
                places = pixels.of_images(first, first + len(images)).to(run.torch_device)
                for view, maps in views.items():
                    parts.setdefault((side, view), []).append(_read(network, maps, places, labels.shape[1:]))
            first += len(images)
    # Joined outside inference mode, so that later arithmetic may change the result.
    rows = {key: torch.cat(found) for key, found in parts.items()}
    return TappedScenes(torch.stack(confusions).clone(), rows, projected)


def _read(network: nn.Module, maps: Tensor, places: Tensor, size: torch.Size) -> Tensor:
    """The features of the cells that hold the places, (m, d)."""
    height, width = size
    frame = network.frame(height, width) if isinstance(network, SegmentationModel) else (height, width)
    cells = [
        (places[:, axis] + 0.5).mul(maps.shape[axis + 1] / whole).long()
        for axis, whole in zip((1, 2), frame, strict=True)
    ]
    return maps[places[:, 0], :, cells[0], cells[1]].float()
