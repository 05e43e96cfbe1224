"""Compare two models layer by layer: CKA between all their layers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pour._records import record
from pour.auditing.features import Role, Side
from pour.data.draws import stratified_rows
from pour.errors import UsageError
from pour.models.copy_and_swap import copy_model
from pour.models.head import named_head
from pour.models.modes import evaluating
from pour.models.tap import to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.data.samples import IndexedSamples

__all__ = ["LayerMap", "layer_maps"]

# Feature maps have tens of thousands of values per image, so only a few hundred images fit into memory.
_IMAGES = 256


@record()
class LayerMap:
    """CKA between every layer of the unlearned model and every layer of a reference."""

    reference: Role
    side: Side
    n: int
    """Number of test images."""
    rows: tuple[str, ...]
    """Layers of the unlearned model."""
    columns: tuple[str, ...]
    """Layers of the reference."""
    values: tuple[tuple[float, ...], ...]
    """CKA of each layer of the unlearned model (row) with each layer of the reference (column)."""

    def __post_init__(self) -> None:
        if [len(row) for row in self.values] != [len(self.columns)] * len(self.rows):
            raise UsageError(f"The CKA values are not one per layer of both models ({len(self.rows)} rows).")


def layer_maps(
    models: Mapping[Role, nn.Module],
    sides: Mapping[Side, IndexedSamples],
    device: torch.device,
    *,
    heads: Mapping[Role, str] | None = None,
    seed: int = 0,
) -> list[LayerMap]:
    """Compare the unlearned model's layers with the layers of the original and of the first retrained model.

    Args:
        models: Models by role.
        sides: Test images of the forgotten and of the retained classes.
        device: Device of the computation.
        heads: Dotted names of the models' heads; other heads are found.
        seed: Fixes the choice of images.
    """
    from pour.metrics.heatmap import cka_heatmap

    maps = []
    compared = {role: model for role, model in models.items() if role != "retrained_second"}
    for side, samples in sides.items():
        few = samples.take(stratified_rows(samples.labels, _IMAGES, seed))
        images = to_unit(next(iter(few.batches(_IMAGES, device)))[0]).float()
        layers = {role: _layers(model, images, (heads or {}).get(role)) for role, model in compared.items()}
        unlearned = layers.pop("unlearned")
        for role, others in layers.items():
            values = tuple(tuple(row) for row in cka_heatmap(unlearned, others).tolist())
            shape = {"rows": tuple(unlearned), "columns": tuple(others)}
            maps.append(LayerMap(reference=role, side=side, n=len(few), values=values, **shape))
    return maps


@torch.no_grad()
def _layers(model: nn.Module, images: Tensor, head: str | None) -> dict[str, Tensor]:
    """Return the outputs of the blocks of a network in the order in which they run."""
    network = copy_model(unwrap(model)).float().to(images.device)
    outputs: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and len(output) == len(images):
            outputs[name] = output.float().flatten(1)

    last = named_head(network, head).name
    # A network without parts has one layer, itself.
    blocks = _blocks(network) or {"model": network}
    for name, block in blocks.items():
        block.register_forward_hook(partial(keep, name))
    with evaluating(network):
        network(images)
    return {name: output for name, output in outputs.items() if name != last} or outputs


def _blocks(network: nn.Module, prefix: str = "") -> dict[str, nn.Module]:
    """Return the parts of a network by name. Containers and a wrapped network are replaced by their parts."""
    blocks: dict[str, nn.Module] = {}
    children = list(network.named_children())
    for name, child in children:
        path = f"{prefix}{name}"
        container = isinstance(child, nn.Sequential | nn.ModuleList) and any(
            list(part.children()) for part in child.children()
        )
        wrapped = name == "model" and len(children) <= 2 and next(child.children(), None) is not None
        blocks |= _blocks(child, f"{path}.") if container or wrapped else {path: child}
    return blocks
