"""Each model runs once over each split; every metric reads what is kept here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from pour.auditing.cache import FeatureCache
from pour.auditing.processes import all_agree, gather_rows, one_of_several, share_of
from pour.auditing.shared_encoders import from_encodings, same_encoder
from pour.data.digest import split_digest
from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.models.copy_and_swap import copy_model
from pour.models.head import find_head
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.state import digest
from pour.models.tap import Features, extract_features, fast_encoder
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import nn

    from pour.data.loader import EpochLoader
    from pour.data.samples import IndexedSamples
    from pour.models.head import Head
    from pour.training.run import Precision

__all__ = ["Role", "Side", "Tapped", "Tapper", "View", "pooled"]

Role = Literal["original", "unlearned", "retrained", "retrained_second"]
"""Which model of an audit."""
View = Literal["features", "raw"]
"""What the head sees, or the encoder's output before a projector."""
Side = Literal["forget", "retain"]
"""Images of the forgotten classes, or the others."""

# Large enough to keep a GPU busy; on a CPU the maps of a batch should stay near its caches.
_GPU_BATCH = 2000
_CPU_BATCH = 64


@dataclass(frozen=True)
class Tapped:
    """What one model makes of every split, in float32 on the audit's device."""

    role: Role
    digest: str
    """SHA-256 of the state dict."""
    forgotten: tuple[int, ...]
    splits: Mapping[str, Features]
    """``"train"``, ``"test"`` and further test sets; features (n, d), scores (n, C)."""
    weight: Tensor
    """The head's, (C, d), without what a projector takes away before it."""
    bias: Tensor | None
    """The head's, (C,)."""
    projected: bool
    """Whether a projector stands before the head, so that raw features differ from the head's."""
    source: str | None = None
    """Names what the features were made of, where they are kept for other audits."""

    def mask(self, split: str, side: Side) -> Tensor:
        """Which images of a split are on a side, (n,) booleans."""
        labels = self.splits[split].labels
        forgotten = torch.isin(labels, torch.tensor(self.forgotten, device=labels.device))
        return forgotten if side == "forget" else ~forgotten

    def rows(self, split: str, view: View = "features") -> Tensor:
        """The features of a split, (n, d)."""
        seen = self.splits[split]
        return seen.features if view == "features" else seen.raw

    def side(self, split: str, side: Side, view: View = "features") -> Tensor:
        """The features of one side of a split, (n, d)."""
        return self.rows(split, view)[self.mask(split, side)]

    def labels(self, split: str) -> Tensor:
        """The true classes of a split, (n,)."""
        return self.splits[split].labels

    def predicts_forgotten(self, split: str) -> Tensor:
        """Whether the predicted class is a forgotten one, (n,) booleans."""
        predicted = self.splits[split].scores.argmax(dim=1)
        return torch.isin(predicted, torch.tensor(self.forgotten, device=predicted.device))


@dataclass
class Tapper:
    """Runs models over the splits; the images go to the device once for all models."""

    splits: Mapping[str, IndexedSamples]
    """What to run on, by name."""
    forgotten: tuple[int, ...]
    """The forgotten classes."""
    device: torch.device
    """Where to run, and where the features stay."""
    precision: Precision = "fp32"
    """fp32 (on a GPU that has it TF32 for all but the head), or bf16; features are kept in float32."""
    head: str | None = None
    """Name of the models' head, where it is not found by itself."""
    heads: Mapping[Role, str] = field(default_factory=dict)
    """Names of the heads of single models, which come before ``head``."""
    cache: Path | None = None
    """A folder for the features of the reference models."""
    cache_unlearned: bool = False
    """Keep the unlearned model's features there too."""
    advance: Callable[[int, str], None] = lambda images, note: None
    """Called with the number of images done and a word on what was done."""
    _loaders: dict[str, EpochLoader] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)
    _tapped: list[tuple[nn.Module, str, Tapped]] = field(default_factory=list)

    def tap_all(self, models: Mapping[Role, nn.Module]) -> dict[Role, Tapped]:
        """Run each model over all splits."""
        # Hashing lets go of the interpreter, so that the models' weights are hashed side by side.
        with ThreadPoolExecutor() as pool:
            weights = pool.map(_weights_digest, models.values())
        return {
            role: self.tap(model, role, weights=found)
            for (role, model), found in zip(models.items(), weights, strict=True)
        }

    def tap(self, model: nn.Module, role: Role, *, weights: str | None = None) -> Tapped:
        """Run a model over all splits, or read what an earlier audit kept of a reference.

        Args:
            model: left as it is.
            role: which model of the audit.
            weights: the digest of its state dict, where the caller knows it.
        """
        network = unwrap(model)
        found = find_head(network, head=self.heads.get(role, self.head))
        self._check_head(found, role)
        weights = weights or _weights_digest(network)
        store = None
        if self.cache is not None and (role != "unlearned" or self.cache_unlearned):
            store = FeatureCache(self.cache, self.precision, self.device)
        on_device: nn.Module | None = None
        twin = self._twin(network, found.name)
        splits: dict[str, Features] = {}
        kept: list[str] = []
        for name, split in self.splits.items():
            labels = torch.as_tensor(split.labels, device=self.device)
            path, seen = None, None
            if store is not None:
                path = store.path(f"{weights}\0{_build(network)}\0{found.name}", self._digest(name), name)
                kept.append(path.name)
                seen = store.read(path, labels)
                # Processes with disks of their own may not all have the file, and tapping needs all of them.
                seen = seen if all_agree(seen is not None, self.device) else None
            if seen is None:
                if on_device is None:
                    # Half-precision networks are measured in float32: what was stored is what is audited.
                    on_device = copy_model(network).float()
                    on_device.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
                if twin is not None:
                    seen = self._derived(on_device, found, role, name, twin)
                if seen is None:
                    # A network that only looked like the other's twin is run, on this split and the next ones.
                    twin, seen = None, self._run(on_device, found, role, name, labels)
                if store is not None and path is not None:
                    store.write(path, seen)
            else:
                self.advance(len(split), f"{role} model from the cache")
            splits[name] = seen
        tapped = Tapped(
            role=role,
            digest=weights,
            forgotten=self.forgotten,
            splits=splits,
            weight=_seen_weight(found).to(self.device),
            bias=None if found.bias is None else found.bias.float().to(self.device),
            projected=isinstance(found.module, ProjectedHead),
            source=" ".join(kept) or None,
        )
        self._tapped.append((network, found.name, tapped))
        return tapped

    def _twin(self, network: nn.Module, head: str) -> Tapped | None:
        """A model tapped before whose encoder is the same, as that of the original is for a projected model."""
        for other, name, tapped in self._tapped:
            if same_encoder(network, other, heads=(head, name)):
                return tapped
        return None

    def _derived(self, model: nn.Module, head: Head, role: Role, name: str, twin: Tapped) -> Features | None:
        """What the model makes of a split, its encoder's output being known; None where it cannot be had that way."""
        raw, labels = twin.splits[name].raw, twin.splits[name].labels
        if one_of_several():
            return None
        first = next(iter(self._loader(name).epoch(0)))[0]
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            seen = from_encodings(model, head, raw, labels, first, batch_size=self._batch_size)
        if seen is None:
            return None
        seen = Features(
            features=seen.features.float(), raw=seen.raw.float(), scores=seen.scores.float(), labels=seen.labels
        )
        _check_finite(seen.features, seen.raw, seen.scores, role, name)
        self.advance(len(labels), f"{role} model, which shares the encoder of the {twin.role} model")
        return seen

    def _run(self, model: nn.Module, head: Head, role: Role, name: str, labels: Tensor) -> Features:
        on_gpu = self.device.type == "cuda"
        with (
            torch.backends.cudnn.flags(enabled=True, benchmark=on_gpu),
            fast_encoder(model, head.name, enabled=on_gpu),
            torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"),
        ):
            seen = extract_features(model, self._batches(name, role), head=head)
        mine = len(share_of(len(labels)))
        features = gather_rows(pooled(seen.features, head)[:mine], len(labels))
        raw = features
        if seen.raw is not seen.features:
            raw = gather_rows(pooled(seen.raw, head)[:mine], len(labels))
        scores = gather_rows(seen.scores.float()[:mine], len(labels))
        _check_finite(features, raw, scores, role, name)
        return Features(features=features, raw=raw, scores=scores, labels=labels)

    @property
    def _batch_size(self) -> int:
        return _GPU_BATCH if self.device.type == "cuda" else _CPU_BATCH

    def _batches(self, name: str, role: Role) -> Iterator[tuple[Tensor, Tensor]]:
        for images, labels in self._loader(name).epoch(0):
            yield images, labels
            self.advance(len(images), f"{role} model on {name} images")

    def _loader(self, name: str) -> EpochLoader:
        if name not in self._loaders:
            split = self.splits[name]
            rows = share_of(len(split))
            # A process without a share runs one image all the same, and keeps nothing of it.
            stop = min(len(split), max(rows.stop, rows.start + 1))
            start = min(rows.start, stop - 1)
            part = split if stop - start == len(split) else split.take(np.arange(start, stop))
            self._loaders[name] = part.batches(self._batch_size, self.device)
        return self._loaders[name]

    def _digest(self, name: str) -> str:
        if name not in self._digests:
            self._digests[name] = split_digest(self.splits[name])
        return self._digests[name]

    def _check_head(self, head: Head, role: Role) -> None:
        highest = max(int(split.labels.max()) for split in self.splits.values())
        if highest >= head.num_classes:
            raise UsageError(
                f"The {role} model has scores for {head.num_classes} classes, but the labels go up to {highest}; "
                "all models of an audit need a score for every class of the data, the forgotten ones included."
            )


def _weights_digest(model: nn.Module) -> str:
    # Trained networks are in channels-last order, and putting that right is much faster before the copy to the host.
    return digest({name: tensor.contiguous() for name, tensor in unwrap(model).state_dict().items()})


def _build(network: nn.Module) -> str:
    """What a network does beside its weights: its modules, their plain settings and buffers that are not stored."""
    stored = network.state_dict().keys()
    buffers = {name: buffer.contiguous() for name, buffer in network.named_buffers() if name not in stored}
    settings = [
        (name, key, _plain(value))
        for name, module in network.named_modules()
        for key, value in sorted(vars(module).items())
        if not key.startswith("_") and key != "training"
    ]
    return f"{network!r}\0{settings!r}\0{digest(buffers)}"


def _plain(value: object) -> object:
    """A setting as it can be written down: numbers, words, what holds them, and the names of everything else."""
    if value is None or isinstance(value, str | bool | int | float | torch.dtype):
        return value
    if isinstance(value, Mapping):
        return [(str(key), _plain(item)) for key, item in value.items()]
    if isinstance(value, set | frozenset):
        return sorted(repr(_plain(item)) for item in value)
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    if isinstance(value, Tensor):
        return digest({"": value.contiguous()})
    if isinstance(value, np.ndarray):
        return value.shape, str(value.dtype), hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
    return getattr(value, "__qualname__", type(value).__qualname__)


def _seen_weight(head: Head) -> Tensor:
    """The head's weight in the space that the features that reach it move in; their decisions are the same."""
    projector = head.module.projector if isinstance(head.module, ProjectedHead) else None
    weight = head.weight.float()
    if projector is None:
        return weight
    removed = projector if isinstance(projector, Projector) else projector.onto_varying_directions()
    return weight if removed is None else removed.to(weight.device).fold(weight)


def pooled(features: Tensor, head: Head) -> Tensor:
    """Features of each image as one float32 row: tokens and maps are averaged, as a linear head before a mean does."""
    if features.ndim > 2:
        features = features.movedim(head.dim, -1).flatten(1, -2).mean(dim=1)
    return features.float()


def _check_finite(features: Tensor, raw: Tensor, scores: Tensor, role: Role, name: str) -> None:
    if scores.ndim != 2:
        raise UsageError(
            f"The {role} model gives scores of shape {tuple(scores.shape)}; "
            "an audit needs one score per class and image."
        )
    # A score of -inf is a mask; every other value that is not finite is damage.
    broken = ~(torch.isfinite(features).all(dim=1) & torch.isfinite(raw).all(dim=1)) | (
        torch.isnan(scores) | torch.isposinf(scores)
    ).any(dim=1)
    if bool(broken.any()):
        raise UsageError(
            f"The {role} model gives NaN or infinite features or scores on {int(broken.sum())} of {len(broken)} {name} "
            "images; it has diverged and cannot be audited."
        )
