"""Models that differ in their heads alone: what the encoder gives is computed once for all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pour.models.head import find_head
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import Features, tap_features, to_unit
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from torch import Tensor, nn

    from pour.models.head import Head

__all__ = ["from_encodings", "same_encoder"]

# Of the encoder's output: far above what another choice of kernels changes, far below what another network would.
_TOLERANCE = 0.01


def same_encoder(first: nn.Module, second: nn.Module, *, heads: tuple[str, str] | None = None) -> bool:
    """Whether two networks differ in their heads alone, as those of one frozen backbone do.

    A network whose encoder has nothing to train says nothing by having the same one.

    Args:
        first: A network.
        second: Another one.
        heads: The dotted names of their heads, by default found by themselves.
    """
    networks = [unwrap(model) for model in (first, second)]
    names = heads or tuple(find_head(network).name for network in networks)
    if type(networks[0]) is not type(networks[1]) or names[0] != names[1] or not names[0]:
        return False
    own = f"{names[0]}."
    ours, theirs = (
        {key: tensor for key, tensor in network.state_dict().items() if not key.startswith(own)} for network in networks
    )
    if not ours or ours.keys() != theirs.keys() or _structure(networks[0], own) != _structure(networks[1], own):
        return False
    return all(
        ours[key].shape == theirs[key].shape and torch.equal(ours[key], theirs[key].to(ours[key].device))
        for key in ours
    )


def from_encodings(
    model: nn.Module, head: Head, raw: Tensor, labels: Tensor, images: Tensor, *, batch_size: int
) -> Features | None:
    """Features and scores of a model whose encoder's output is known, by running its head alone.

    The model runs whole on ``images``, the first ones of the split. Where it then sees other encodings than the known
    ones, or does more with the head's scores than hand them on, the answer is None.

    Args:
        model: on the device of ``raw``.
        head: its head, or that of a copy.
        raw: the encoder's output on all images of the split, (n, d).
        labels: of the split, (n,).
        images: the first images of the split, a batch.
        batch_size: rows to a call of the head.
    """
    network = unwrap(model)
    with tap_features(network, head) as tap, evaluating(network), torch.inference_mode():
        whole = scores_of(network(to_unit(images)), num_classes=tap.head.num_classes)
        known = raw[: len(images)]
        if tap.raw.shape != known.shape or not _close(tap.raw, known):
            return None
        parts: list[tuple[Tensor, Tensor]] = []
        for rows in torch.split(raw, batch_size):
            # Copied, so that the last bit of a product does not depend on where in memory the rows lie.
            scores = scores_of(tap.head.module(rows.clone()), num_classes=tap.head.num_classes)
            parts.append((tap.features, scores))
        if parts[0][1].shape[1:] != whole.shape[1:] or not _close(parts[0][1][: len(whole)], whole[:batch_size]):
            return None
    # Joined outside inference mode, so that probes and attacks may train on the result.
    features, scores = (torch.cat(column) for column in zip(*parts, strict=True))
    return Features(features=features if tap.raw is not tap.features else raw, raw=raw, scores=scores, labels=labels)


def _close(one: Tensor, other: Tensor) -> bool:
    one, other = one.float(), other.float()
    size = other.clamp(-1e6, 1e6).square().mean(dim=0).sqrt()
    return bool(((one - other).abs() <= _TOLERANCE * (size + other.abs())).all())


def _structure(network: nn.Module, own: str) -> list[str]:
    """The modules of the encoder, in words."""
    return [
        f"{name} {type(module).__qualname__} {module.extra_repr()}"
        for name, module in network.named_modules()
        if not f"{name}.".startswith(own)
    ]
