"""Compute the encoder's output once for all models that differ only in their heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.models.head import Head

__all__ = ["run_head", "runs_head_on", "same_encoder"]

# Largest relative difference of equal outputs: far above the effect of other kernels, far below that of other weights.
_TOLERANCE = 0.01


def same_encoder(first: nn.Module, second: nn.Module, *, heads: tuple[str, str] | None = None) -> bool:
    """Return whether two networks differ only in their heads, such as two networks with one frozen backbone.

    Return False for networks without weights outside the head, because any two of them have the same encoder.

    Args:
        first: A network.
        second: Another network.
        heads: Dotted names of their heads; by default they are found.
    """
    networks = [unwrap(model) for model in (first, second)]
    names = heads or tuple(find_head(network).name for network in networks)
    if type(networks[0]) is not type(networks[1]) or names[0] != names[1] or not names[0]:
        return False
    prefix = f"{names[0]}."
    encoders = [
        {key: tensor for key, tensor in network.state_dict().items() if not key.startswith(prefix)}
        for network in networks
    ]
    if not encoders[0] or encoders[0].keys() != encoders[1].keys():
        return False
    if _structure(networks[0], prefix) != _structure(networks[1], prefix):
        return False
    pairs = ((encoders[0][key], encoders[1][key]) for key in encoders[0])
    return all(one.shape == other.shape and torch.equal(one, other.to(one.device)) for one, other in pairs)


def runs_head_on(model: nn.Module, head: Head, inputs: Tensor, raw: Tensor) -> bool:
    """Return whether the encoder of `model` returns `raw`, and the head alone returns the scores of `model`.

    Args:
        model: Network on the device of `raw`.
        head: Its head, or the head of a copy.
        inputs: Inputs of a batch.
        raw: Output of another network's encoder on them, (n, d).
    """
    with tap_features(model, head) as tap, evaluating(model), torch.inference_mode():
        whole = scores_of(model(to_unit(inputs)), num_classes=tap.head.num_classes)
        if tap.raw.shape != raw.shape or not _close(tap.raw, raw):
            return False
        alone = scores_of(tap.head.module(raw.clone()), num_classes=tap.head.num_classes)
    return alone.shape == whole.shape and _close(alone, whole)


def run_head(model: nn.Module, head: Head, raw: Tensor, *, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return features and scores of `model` from its encoder's output `raw`, (n, d)."""
    parts: list[tuple[Tensor, Tensor]] = []
    with tap_features(model, head) as tap, evaluating(model), torch.inference_mode():
        for rows in torch.split(raw, batch_size):
            # Copied, so that the last bit of a product does not depend on the place of the rows in memory.
            scores = scores_of(tap.head.module(rows.clone()), num_classes=tap.head.num_classes)
            parts.append((tap.features, scores))
        same = tap.raw is tap.features
    # Joined outside inference mode, so that probes and attacks may train on the result.
    features, scores = (torch.cat(column) for column in zip(*parts, strict=True))
    return raw if same else features, scores


def _close(one: Tensor, other: Tensor) -> bool:
    one, other = one.float(), other.float()
    size = other.clamp(-1e6, 1e6).square().mean(dim=0).sqrt()
    return bool(((one - other).abs() <= _TOLERANCE * (size + other.abs())).all())


def _structure(network: nn.Module, head: str) -> list[str]:
    """Return the modules outside the head as text."""
    return [
        f"{name} {type(module).__qualname__} {module.extra_repr()}"
        for name, module in network.named_modules()
        if not f"{name}.".startswith(head)
    ]
