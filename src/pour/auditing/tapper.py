"""Run all models in one pass over each split: each batch is the input of every model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pour._memory import release_freed_memory
from pour.auditing.cache import output_file, read_output, write_output
from pour.auditing.features import Seen, Tapped
from pour.auditing.loaders import loader_notes, sample_digests
from pour.auditing.processes import all_agree, gather_rows, one_of_several, share_of
from pour.auditing.shared_encoders import run_head, runs_head_on, same_encoder
from pour.data.digest import split_digest
from pour.data.samples import checked_batch, is_indexed
from pour.errors import UsageError
from pour.geometry.projector import Projector
from pour.metrics.predictions import confusion_matrix
from pour.models.copy_and_swap import copy_model
from pour.models.head import named_head
from pour.models.projecting.projected_head import ProjectedHead
from pour.models.state import digest
from pour.models.tap import extract_features, fast_encoder
from pour.models.unwrap import unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from torch import nn

    from pour.auditing.audited import Audited
    from pour.auditing.features import Role
    from pour.data.loader import EpochLoader
    from pour.data.samples import Batches, IndexedSamples
    from pour.models.head import Head
    from pour.training.run import Run

__all__ = ["Tapper"]

# Large enough to keep a GPU busy. On a CPU the feature maps of a batch should stay near its caches.
_GPU_BATCH = 2000
_CPU_BATCH = 64


@dataclass(frozen=True, eq=False)
class _Model:
    """A model and its head, as the passes over the data need them."""

    role: Role
    network: nn.Module
    head: Head
    digest: str
    device: torch.device

    @cached_property
    def on_device(self) -> nn.Module:
        """Copy on the device, in float32, so that half-precision weights are measured as they are stored."""
        copy = copy_model(self.network).float()
        copy.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        return copy

    @cached_property
    def identity(self) -> str:
        """Text that differs for networks with different outputs."""
        return f"{self.digest}\0{_structure(self.network)}\0{self.head.name}"


@dataclass
class Tapper:
    """Runs models over the splits. One pass over a split feeds each batch to every model."""

    audited: Audited
    run: Run
    """Device and precision. With TF32, all layers except the head use it. The output is always float32."""
    heads: Mapping[Role, str] = field(default_factory=dict)
    """Dotted names of the models' heads. A head without a name is found by pour."""
    cache: Path | None = None
    """Folder in which the output of the reference models is stored."""
    cache_unlearned: bool = False
    """Whether the unlearned model's output is stored there, too."""
    advance: Callable[[int, str], None] = lambda samples, note: None
    """Function that reports progress. Its arguments are a number of samples and a note."""
    notes: list[str] = field(default_factory=list)
    """Remarks on loaders that return different samples in each pass."""
    _loaders: dict[str, EpochLoader] = field(default_factory=dict)
    _digests: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._task, self._samples, self._device = self.audited.task, self.audited.samples, self.run.torch_device

    def tap(self, model: nn.Module, role: Role) -> Tapped:
        """Return the output of one model on all splits."""
        return self.tap_all({role: model})[role]

    def tap_all(self, models: Mapping[Role, nn.Module]) -> dict[Role, Tapped]:
        """Return the output of each model on all splits. The models do not change."""
        # Hashing releases Python's lock, so threads can hash the weights of several models at a time.
        with ThreadPoolExecutor() as pool:
            digests = list(pool.map(_weights_digest, models.values()))
        prepared = [
            _Model(role, unwrap(model), named_head(model, self.heads.get(role)), digest, self._device)
            for (role, model), digest in zip(models.items(), digests, strict=True)
        ]
        twins = {} if one_of_several() else _twins(prepared)
        outputs = {name: self._split(name, prepared, twins) for name in self._samples}
        return {
            model.role: Tapped(
                role=model.role,
                digest=model.digest,
                forgotten=self.audited.forgotten,
                splits={name: output[model.role] for name, output in outputs.items()},
                weight=_projected_weight(model.head).to(self._device),
                bias=None if model.head.bias is None else model.head.bias.float().to(self._device),
                projected=isinstance(model.head.module, ProjectedHead),
                source=" ".join(file.name for name in self._samples for file in self._files(model, name)) or None,
            )
            for model in prepared
        }

    def _split(self, name: str, models: Sequence[_Model], twins: Mapping[Role, Role]) -> dict[Role, Seen]:
        """Return the output of all models on a split, from the cache or from one pass."""
        output: dict[Role, Seen] = {}
        for model in models:
            for file in self._files(model, name):
                stored = read_output(file, self._device)
                # Processes with disks of their own may not all have the file, and a pass needs all of them.
                if all_agree(stored is not None, self._device) and stored is not None:
                    output[model.role] = stored
                    self.advance(stored.num_samples, f"{model.role} model from the cache")
        missing = [model for model in models if model.role not in output]
        if missing:
            output |= self._pass(name, missing, twins, output)
        for model in missing:
            for file in self._files(model, name):
                write_output(file, output[model.role])
        return output

    def _pass(
        self, name: str, models: Sequence[_Model], twins: Mapping[Role, Role], known: Mapping[Role, Seen]
    ) -> dict[Role, Seen]:
        """Return the output of `models` on a split, whose batches are read once."""
        samples = self._samples[name]
        drawn = self._task.draw(samples, self.audited.forgotten, self.run.seed)
        parts: dict[Role, list[Seen]] = {model.role: [] for model in models}
        derived: list[_Model] = []
        digests: list[bytes] = []
        done = 0
        for batch, labels in self._batches(name):
            # Models are audited in float32, so inputs in float64 are converted.
            inputs = batch.float() if batch.dtype == torch.float64 else batch
            row_labels = labels if drawn is None else drawn[done : done + len(inputs)].to(self._device)
            for model in models:
                twin = twins.get(model.role)
                if done == 0 and twin is not None:
                    raw = known[twin].raw if twin in known else parts[twin][0].raw
                    with self.run.autocast():
                        if runs_head_on(model.on_device, model.head, inputs, raw[: len(inputs)]):
                            derived.append(model)
                if model not in derived:
                    parts[model.role].append(self._run(model, inputs, labels, row_labels, done))
                    self.advance(len(inputs), f"{model.role} model on {name} samples")
            if not is_indexed(samples):
                digests += sample_digests(inputs, labels)
            done += len(inputs)
        if not done:
            raise UsageError(f"The {name} loader returns no samples.")
        output: dict[Role, Seen] = {}
        # The feature maps of the pass are larger than all features.
        release_freed_memory()
        for role in [role for role, batches in parts.items() if batches]:
            # Models are joined one at a time, because joining needs the memory of the batches twice.
            output[role] = self._gathered(Seen.joined(parts.pop(role)), samples)
        for model in derived:
            twin = twins[model.role]
            output[model.role] = self._derived(model, known[twin] if twin in known else output[twin])
            self.advance(done, f"{model.role} model, which has the encoder of the {twin} model")
        output = {role: self._checked(seen, role, name) for role, seen in output.items()}
        if not is_indexed(samples):
            # Samples are sorted by digest, so that a loader that shuffles has the same results in each audit.
            order = torch.tensor(sorted(range(done), key=digests.__getitem__), device=self._device)
            output = {role: seen.in_order(order) for role, seen in output.items()}
            self.notes += loader_notes(name, samples, digests, done, self.audited.first(name))
        return output

    def _run(self, model: _Model, inputs: Tensor, labels: Tensor, row_labels: Tensor, first: int) -> Seen:
        """Return the output of a model on one batch.

        Args:
            model: Model to run.
            inputs: Inputs of the batch.
            labels: Labels of the batch.
            row_labels: The same labels, or the void label if the audit does not store the feature vector.
            first: Index of the first sample of the batch.
        """
        highest = int(labels.max())
        if highest >= model.head.num_classes:
            raise UsageError(
                f"The {model.role} model has scores for {model.head.num_classes} classes, but the largest label is "
                f"{highest}; use models with a score for every class of the data, also for the forgotten classes."
            )
        on_gpu = self._device.type == "cuda"
        with fast_encoder(model.on_device, model.head.name, enabled=on_gpu), self.run.autocast():
            batch = extract_features(model.on_device, [(inputs, labels)], head=model.head)
        views = [batch.features] if batch.raw is batch.features else [batch.features, batch.raw]
        rows = [self._task.rows(view.movedim(model.head.dim, 1), row_labels, model.network) for view in views]
        features, *raw = (part.features.float() for part in rows)
        scores, none = batch.scores.float(), torch.empty(0, device=self._device)
        measured = {"scores": scores, "counts": none, "confusion": none}
        if not self._task.one_label:
            confusion = self._task.confusion(scores, labels).sum(dim=0)
            measured = {"scores": none, "counts": self._task.counts(scores, labels), "confusion": confusion}
        return Seen(
            features=features,
            raw=raw[0] if raw else features,
            labels=rows[0].labels.long(),
            samples=rows[0].samples + first,
            **measured,
        )

    def _derived(self, model: _Model, twin: Seen) -> Seen:
        """Return the output of a model that shares its encoder with `twin`, by running the head alone."""
        with self.run.autocast():
            features, scores = run_head(model.on_device, model.head, twin.raw, batch_size=self._batch_size)
        return replace(twin, features=features.float(), scores=scores.float())

    def _gathered(self, seen: Seen, samples: IndexedSamples | Batches) -> Seen:
        """Return the output on the samples of all processes."""
        if not (one_of_several() and self._task.one_label and is_indexed(samples)):
            return seen
        count = len(samples)
        mine = len(share_of(count))
        rows = {name: gather_rows(getattr(seen, name)[:mine], count) for name in ("features", "labels", "scores")}
        raw = rows["features"] if seen.raw is seen.features else gather_rows(seen.raw[:mine], count)
        return replace(seen, **rows, raw=raw, samples=torch.arange(count, device=self._device))

    def _checked(self, seen: Seen, role: Role, name: str) -> Seen:
        """Return the output with its confusion. Raise UsageError if it contains NaN or infinite values."""
        broken = ~(torch.isfinite(seen.features).all(dim=1) & torch.isfinite(seen.raw).all(dim=1))
        if self._task.one_label:
            if seen.scores.ndim != 2:
                raise UsageError(
                    f"The {role} model returns scores of shape {tuple(seen.scores.shape)}; "
                    "an audit needs one score per class and image."
                )
            # A score of -inf is a mask. NaN and +inf are errors.
            broken |= (torch.isnan(seen.scores) | torch.isposinf(seen.scores)).any(dim=1)
        if bool(broken.any()):
            raise UsageError(
                f"The {role} model returns NaN or infinite features or scores on {int(broken.sum())} of {len(broken)} "
                f"{name} {self._task.unit}s; it has diverged and cannot be audited."
            )
        if not self._task.one_label:
            return seen
        return replace(seen, confusion=confusion_matrix(seen.scores, seen.labels, seen.scores.shape[1]))

    @property
    def _batch_size(self) -> int:
        return _GPU_BATCH if self._device.type == "cuda" else _CPU_BATCH

    def _batches(self, name: str) -> Iterable[tuple[Tensor, Tensor]]:
        samples = self._samples[name]
        if not is_indexed(samples):
            batches = map(checked_batch, samples)
            return ((inputs.to(self._device), labels.to(self._device)) for inputs, labels in batches)
        if name not in self._loaders:
            size = self._batch_size
            if not self._task.one_label:
                size = self._task.batch_size(self.run)
            elif one_of_several():
                rows = share_of(len(samples))
                # All processes must run the same steps, so a process without a share runs one sample and discards it.
                start = min(rows.start, len(samples) - 1)
                samples = samples.take(np.arange(start, max(rows.stop, start + 1)))
            self._loaders[name] = samples.batches(size, self._device)
        return self._loaders[name].epoch(0)

    def _files(self, model: _Model, name: str) -> list[Path]:
        """Return the file of the cache for a model's output on a split; an empty list without a cache."""
        if self.cache is None or (model.role == "unlearned" and not self.cache_unlearned):
            return []
        if name not in self._digests:
            self._digests[name] = split_digest(self._samples[name])  # type: ignore[arg-type]
        key: tuple[object, ...] = (model.identity, self._digests[name], self.run.precision, self._device.type)
        if not self._task.one_label:
            # The drawn feature vectors depend on the seed.
            key += (self._task.name, self._task.cell_identity(), self.audited.forgotten, self.run.seed)
        return [output_file(self.cache, key, name)]


def _twins(models: Sequence[_Model]) -> dict[Role, Role]:
    """Return for each model an earlier one with the same encoder, such as the original of a projected model."""
    twins: dict[Role, Role] = {}
    for other, model in combinations(models, 2):
        are_free = model.role not in twins and other.role not in twins
        heads = (model.head.name, other.head.name)
        if are_free and same_encoder(model.network, other.network, heads=heads):
            twins[model.role] = other.role
    return twins


def _weights_digest(model: nn.Module) -> str:
    # Trained networks are in channels-last order. Changing that is much faster before the copy to the host.
    return digest({name: tensor.contiguous() for name, tensor in unwrap(model).state_dict().items()})


def _structure(network: nn.Module) -> str:
    """Return the modules of a network, their plain settings and the buffers that are not stored."""
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
    """Return a setting as numbers, text, their containers, and the names of everything else."""
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


def _projected_weight(head: Head) -> Tensor:
    """Return the head's weight, projected like the features; the decisions stay the same."""
    if head.further_heads:
        return torch.cat([_projected_weight(each) for each in head.each], dim=1) / len(head.each)
    projector = head.module.projector if isinstance(head.module, ProjectedHead) else None
    weight = head.weight.float()
    if projector is None:
        return weight
    removed = projector if isinstance(projector, Projector) else projector.onto_varying_directions()
    return weight if removed is None else removed.to(weight.device).fold(weight)
