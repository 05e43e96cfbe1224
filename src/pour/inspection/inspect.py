"""Describe a model before it is changed: its head, its accuracy, its collapse, and the methods that suit it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pour._words import in_words
from pour.data.classes import resolve_classes
from pour.data.samples import as_samples, first_batch, is_indexed
from pour.data.splits import Splits
from pour.errors import PourError, UsageError
from pour.geometry.collapse import NeuralCollapse, neural_collapse
from pour.inspection.advice import advise, expectations
from pour.inspection.answers import Sample
from pour.inspection.inspection import Collapse, Inspection, Layer, Rate, Trial, Word
from pour.inspection.preflight import doubts_on_answers
from pour.inspection.roles import doubts_on_training
from pour.metrics.intervals import wilson
from pour.models import card as cards
from pour.models.check_data import check_data
from pour.models.clip.zero_shot import TextHead
from pour.models.copy_and_swap import in_float32
from pour.models.head import Head, find_head, heads_of
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.history import forgotten_before, history
from pour.models.modes import evaluating
from pour.models.networks.normalize import Normalize, NormalizedModel
from pour.models.output import scores_of
from pour.models.projecting.direction import RowDirection, head_removal
from pour.models.projecting.projected_head import ProjectedHead, is_head_layer
from pour.models.tap import device_of, on_device, tap_features, to_unit
from pour.models.unwrap import unwrap
from pour.training.run import Run
from pour.training.tasks.task import find_task, get_task, task_of_labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pour.data.classes import ClassRequest
    from pour.data.samples import Batches, IndexedSamples
    from pour.models.head import Example
    from pour.training.tasks.task import Dataset, Task

__all__ = ["inspect"]

_NORMALISATION = {
    "BatchNorm": nn.modules.batchnorm._BatchNorm,
    "LayerNorm": nn.LayerNorm,
    "GroupNorm": nn.GroupNorm,
    "InstanceNorm": nn.modules.instancenorm._InstanceNorm,
}
_LIMIT = 5000
# Samples of a split that are checked for contradictions.
_CHECKED = 512
# Feature vectors of pixels that are kept per split.
_MOST_ROWS = 20000
_BATCH = 100
_SEED = 0
# Largest values for "nearly" and for "partly". For comparison: a ResNet-18 has 0.06, 3 degrees and 0.2 on CIFAR-10, and
# 0.6, 6 degrees and 0.3 on CIFAR-100. Small networks on digits have 0.4, 20 degrees and 0.5.
_LIMITS = {"nc1": (0.1, 1.0), "nc2_norm_spread": (0.1, 0.3), "nc2_angle_std": (5.0, 12.0), "nc3": (0.3, 0.6)}
_LEAST_AGREEMENT = (0.99, 0.9)
_MEASURES = {
    "nc1": ("NC1", "Images of one class have the same features"),
    "nc2_norm_spread": ("NC2 lengths", "The class means have equal lengths"),
    "nc2_angle_std": (
        "NC2 angle",
        "The class means have equal angles (value: deviation in degrees)",
    ),
    "nc3": ("NC3", "The rows of the head point along the class means"),
    "nc4": ("NC4", "The head answers with the nearest class mean"),
}
_WORDS: tuple[Word, ...] = ("nearly", "partly", "no")
# If a class is recognised less often, no trial is run: there is nothing to forget.
_LEAST_ACCURACY = 0.1
_DIRECTIONS: tuple[RowDirection, ...] = ("weights", "decisions", "scores")


def inspect(
    model: nn.Module,
    data: Splits | Dataset | Mapping[str, Any] | IndexedSamples | Batches | None = None,
    classes: ClassRequest | None = None,
    *,
    head: str | Sequence[str] | None = None,
    example: Example | None = None,
    task: Task[Any, Any] | str | None = None,
    limit: int = _LIMIT,
    device: str | torch.device | None = None,
) -> Inspection:
    """Describe `model`, and recommend a method. Nothing is trained, and the model does not change.

    If the head is not found, the result lists the layers that could be the head.

    Args:
        model: Any classifier.
        data: Splits, a dataset, samples by split (`{"train": ..., "test": ...}`), a loader or a torch dataset.
            Accuracy is measured on the test samples and collapse on the training samples, if the data have both.
        classes: Classes to forget, by name or index; by default those of the splits.
        head: Dotted name of the head, or names of several heads whose scores the model averages.
        example: Small batch of inputs on which the head is found; by default samples of the data.
        task: Task or its name; by default the task of the data.
        limit: Largest number of samples per split.
        device: Device of the computation; by default the GPU, if present.

    Raises:
        UsageError: The data cannot be read, or a class does not exist.

    Examples:
        >>> import pour
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> inspection = pour.inspect(model, pour.load_dataset("digits"), ["3"], device="cpu")
        >>> [rate.samples for rate in inspection.accuracy]
        ['test, all classes', "test, '3'", 'test, other classes']
    """
    network = unwrap(model)
    run = Run(device=device, progress=False)
    read = None if data is None else _Data.of(data, task)
    few = None if read is None else read.few()
    head_layer, unclear = _head(network, head, example, few)
    names = _class_names(network, head_layer, read)
    request = _request(classes, read, head_layer, names)
    earlier = sorted(forgotten_before(network))
    accuracy: list[Rate] = []
    doubts: tuple[str, ...] | None = None
    measured: dict[str, NeuralCollapse] = {}
    trials: list[Trial] = []
    counts: dict[str, int] = {}
    if read is not None and head_layer is not None and few is not None:
        numbered = names or tuple(map(str, range(head_layer.num_classes)))
        try:
            doubts = _doubts(network, few, read, request, numbered, run)
            outputs = {name: _Output.of(network, head_layer, read, name, limit, run) for name in read.splits}
        except UsageError as error:
            doubts, outputs = (str(error),), {}
        counts = {name: output.count for name, output in outputs.items()}
        for name, output in list(outputs.items())[:1]:
            accuracy = _accuracies(output, name, request, names)
            trials = _trials(output, head_layer, request, earlier) if read.task.one_label else []
        for output in list(outputs.values())[-1:]:
            measured = _collapse(output, head_layer)
    normalisation = _normalisation(network)
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in _floats(network)})
    forgotten = [f"{entry.method}: {_entry(entry.class_names, entry.classes)}" for entry in history(network)]
    layer = next((each for each in network.modules() if isinstance(each, Normalize)), None)
    mean, std = (None, None) if layer is None else (layer.mean, layer.std)
    recorded = cards.architecture(network)
    lines = _collapse_lines(measured)
    removed = [_entry(entry.class_names, entry.classes) for entry in history(network) if entry.classes]
    return Inspection(
        network=type(network.model if isinstance(network, NormalizedModel) else network).__name__,
        architecture=None if recorded is None else recorded.name,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        dtypes=tuple(dtypes),
        device=str(device_of(network)),
        heads=() if head_layer is None else _layers(network, head_layer),
        unclear=unclear,
        candidates=() if unclear is None else _candidates(network),
        class_names=names,
        normalisation=normalisation,
        mean=None if mean is None else tuple(mean.flatten().tolist()),
        std=None if std is None else tuple(std.flatten().tolist()),
        forgotten=tuple(forgotten),
        data=None if read is None else read.describe(counts),
        accuracy=tuple(accuracy),
        doubts=doubts,
        simplex=max((line.holds for line in lines), key=_WORDS.index, default=None),
        collapse=tuple(lines),
        trials=tuple(trials),
        advice=()
        if head_layer is None
        else tuple(
            advise(head_layer, request, earlier, trials, pixelwise=read is not None and not read.task.one_label)
        ),
        notes=tuple(expectations(normalisation, trials, removed, dtypes)),
    )


@dataclass(frozen=True)
class _Data:
    """Samples by split, the test samples first and the training samples last."""

    name: str
    task: Task[Any, Any]
    splits: Mapping[str, IndexedSamples | Batches]
    classes: tuple[str, ...] | None = None
    forgotten: tuple[int, ...] = ()

    @classmethod
    def of(cls, data: Any, task: Task[Any, Any] | str | None) -> _Data:
        label_task = get_task(task) if isinstance(task, str) else task
        if isinstance(data, Splits):
            whole = {"test": data.test.whole, "train": data.train.whole}
            return cls(data.name, label_task or get_task("classify"), whole, tuple(data.classes), data.forgotten)
        if hasattr(data, "splits") and hasattr(data, "classes"):
            label_task = label_task or get_task(find_task(data.name))
            order = sorted(data.splits, key=lambda name: (name != "test", name == "train"))
            split_names = [name for name in order if name in ("test", "train")] or order[:1]
            return cls(
                data.name, label_task, {name: label_task.split(data, name) for name in split_names}, tuple(data.classes)
            )
        parts = data if isinstance(data, Mapping) else {"": data}
        order = sorted(parts, key=lambda name: (name != "test", name == "train"))
        split_names = [name for name in order if name in ("test", "train")] or order[:1]
        splits = {name: as_samples(parts[name]) for name in split_names}
        if not splits:
            raise UsageError("The data have no samples; pass a dataset, or a mapping with test and train.")
        label_task = label_task or get_task(task_of_labels(first_batch(next(iter(splits.values())), 1)[1]))
        return cls("own data", label_task, splits, tuple(getattr(data, "classes", ())) or None)

    def few(self) -> Tensor:
        """Return a few inputs."""
        return first_batch(next(iter(self.splits.values())), FEW_IMAGES)[0]

    def batches(self, split: str, limit: int, run: Run) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of at most `limit` samples, evenly spaced if the samples have an index."""
        samples = self.splits[split]
        batches: Iterable[tuple[Tensor, Tensor]]
        if is_indexed(samples):
            count = min(limit, len(samples))
            rows = np.arange(count) * len(samples) // max(1, count)
            batches = samples.take(rows).batches(min(_BATCH, self.task.batch_size(run)), run.torch_device)
        else:
            batches = samples
        left = limit
        for inputs, labels in batches:
            if left <= 0:
                return
            yield inputs[:left], labels[:left]
            left -= len(labels)

    def describe(self, counts: Mapping[str, int]) -> str:
        """Return the name of the data, and the number of samples that were read per split."""
        titles = {"train": "training", "": "given"}
        parts = [f"{count:,} {titles.get(name, name)}" for name, count in counts.items()]
        return f"{self.name}: {in_words(parts)} images" if parts else f"{self.name}: not read"


@dataclass(frozen=True)
class _Output:
    """Features, labels and answers of a model on one split."""

    count: int
    """Number of samples."""
    right: Tensor
    """Number of right answers by true class, (C,)."""
    total: Tensor
    """Number of answers by true class, (C,)."""
    showing: Tensor
    """Number of samples that show each class, (C,)."""
    features: Tensor
    """Feature vectors (m, d); empty if they cannot be read."""
    labels: Tensor
    """Class of each feature vector, (m,)."""

    @classmethod
    def of(cls, model: nn.Module, head: Head, read: _Data, split: str, limit: int, run: Run) -> _Output:
        network, task = in_float32(model), read.task
        sums = torch.zeros(3, head.num_classes, dtype=torch.int64)
        parts: list[tuple[Tensor, Tensor]] = []
        count = 0
        with (
            on_device(network, run.torch_device) as place,
            tap_features(network, head) as tap,
            evaluating(network),
            torch.inference_mode(),
        ):
            for inputs, labels in read.batches(split, limit, run):
                truth = labels.to(place)
                scores = scores_of(network(to_unit(inputs.to(place))), num_classes=head.num_classes)
                sums += _answers(task, scores, truth).cpu()
                count += len(truth)
                with contextlib.suppress(PourError):
                    # A network that uses the weight of its head without calling it has no readable features.
                    rows = task.rows(tap.features, truth, network)
                    step = -(-len(rows.labels) * limit // (len(truth) * _MOST_ROWS))
                    parts.append((rows.features[::step].float(), rows.labels[::step]))
        if not count:
            raise UsageError("The data contain no samples; pass at least one.")
        empty = torch.zeros(0, head.num_features), torch.zeros(0, dtype=torch.int64)
        features, labels = (torch.cat(part) for part in zip(*(parts or [empty]), strict=True))
        right, total, showing = sums
        return cls(count, right, total, showing, features, labels)


def _answers(task: Task[Any, Any], scores: Tensor, labels: Tensor) -> Tensor:
    """Return right answers, answers and samples by true class, (3, C)."""
    if task.one_label:
        classes = scores.shape[1]
        total = torch.bincount(labels, minlength=classes)
        return torch.stack([torch.bincount(labels[scores.argmax(dim=1) == labels], minlength=classes), total, total])
    counts = task.confusion(scores, labels)
    totals = counts.sum(dim=2)
    return torch.stack([counts.diagonal(dim1=1, dim2=2).sum(dim=0), totals.sum(dim=0), (totals > 0).sum(dim=0)])


def _head(
    model: nn.Module, name: str | Sequence[str] | None, example: Example | None, few: Tensor | None
) -> tuple[Head | None, str | None]:
    """Return the head, or None and the reason why it was not found."""
    try:
        if example is None and few is not None:
            return head_on_images(model, few, head=name), None
        return find_head(model, head=name, example=example), None
    except UsageError as error:
        # The remedies follow the list of layers.
        return None, str(error).partition("; name the head")[0].partition("; pass example=")[0].rstrip(".") + "."


def _class_names(model: nn.Module, head: Head | None, read: _Data | None) -> tuple[str, ...] | None:
    names = cards.class_names(model) if head is None else cards.names_of_scores(model, head.num_classes)
    if names is None and read is not None and (head is None or len(read.classes or ()) == head.num_classes):
        names = read.classes
    return names


def _request(
    classes: ClassRequest | None, read: _Data | None, head: Head | None, names: Sequence[str] | None
) -> tuple[int, ...]:
    """Return the indices of the classes to forget."""
    if classes is None:
        return () if read is None else read.forgotten
    if head is None and names is None:
        return ()
    number = len(names or ()) if head is None else head.num_classes
    return resolve_classes(classes, num_classes=number, class_names=names)


def _doubts(
    model: nn.Module, few: Tensor, read: _Data, request: tuple[int, ...], names: Sequence[str], run: Run
) -> tuple[str, ...]:
    """Return the contradictions between model, data and classes, one sentence per cause."""
    try:
        if read.classes is not None:
            check_data(model, channels=few.shape[1] if few.ndim > 1 else None, names=read.classes)
    except UsageError as error:
        return (str(error),)
    # The model does not recognise a class that an earlier request removed.
    classes = sorted(set(request) - forgotten_before(model))
    sentences = {finding.cause: finding.sentence for finding in doubts_on_training(model, classes, names)}
    for split in read.splits:
        sample = Sample(read.batches(split, _CHECKED, run), read.task, run.torch_device)
        unit = f"{split} {read.task.unit}s".strip()
        for finding in doubts_on_answers(model, sample, classes, names, unit=unit):
            sentences.setdefault(finding.cause, finding.sentence)
    return tuple(sentence.replace("The original ", "The model ") for sentence in sentences.values())


def _accuracies(output: _Output, split: str, request: tuple[int, ...], names: Sequence[str] | None) -> list[Rate]:
    prefix = f"{split}, " if split else ""
    every = set(range(len(output.total)))
    sides = {"all classes": every}
    if request:
        titles = [f"'{names[label]}'" if names else f"class {label}" for label in request]
        sides |= {in_words(titles): set(request), "other classes": every - set(request)}
    rates = []
    for title, side in sides.items():
        labels = sorted(side)
        total = int(output.total[labels].sum())
        if total:
            share = int(output.right[labels].sum()) / total
            # The interval counts samples, because the pixels of one sample are similar.
            count = min(output.count, int(output.showing[labels].sum()))
            interval = wilson(round(share * count), count)
            rates.append(Rate(samples=prefix + title, count=count, value=share, low=interval.low, high=interval.high))
    return rates


def _collapse(output: _Output, head: Head) -> dict[str, NeuralCollapse]:
    """Return Neural Collapse of the features, and of random features and a random head of the same sizes."""
    features, labels = output.features, output.labels
    if len(torch.unique(labels)) < 2:
        return {}
    draw = torch.Generator().manual_seed(_SEED)
    rows = torch.randn(features.shape, generator=draw).to(features.device)
    weight = torch.randn(head.weight.shape, generator=draw).to(features.device)
    head_weight = head.weight.float().to(features.device)
    bias = None if head.bias is None else head.bias.float().to(features.device)
    return {
        "value": neural_collapse(features, labels, head_weight, bias),
        "random": neural_collapse(rows, labels, weight),
    }


def _collapse_lines(measured: Mapping[str, NeuralCollapse]) -> list[Collapse]:
    lines = []
    for key, (name, meaning) in _MEASURES.items() if measured else ():
        value, random = (float(getattr(measured[kind], key)) for kind in ("value", "random"))
        if key == "nc4":
            step = sum(value < least for least in _LEAST_AGREEMENT)
        else:
            step = sum(not value <= most for most in _LIMITS[key])
        lines.append(Collapse(name=name, property=meaning, value=value, random=random, holds=_WORDS[step]))
    return lines


def _trials(output: _Output, head: Head, request: tuple[int, ...], earlier: Sequence[int]) -> list[Trial]:
    """Return the effect of each direction of POUR-P on the answers, if the scores of the classes are kept."""
    if not len(output.features) or not request or head.dim != -1 or isinstance(head.layer, TextHead):
        return []
    device = output.features.device
    is_forgotten = torch.isin(output.labels, torch.tensor(request, device=device))
    if not is_forgotten.any() or is_forgotten.all():
        return []
    bias = None if head.bias is None else head.bias.float().to(device)
    weight = head.weight.float().to(device)

    def right(features: Tensor) -> Tensor:
        return (nn.functional.linear(features, weight, bias).argmax(dim=1) == output.labels).float()

    before = right(output.features)
    if float(before[is_forgotten].mean()) < _LEAST_ACCURACY:
        return []
    trials = []
    for direction in _DIRECTIONS:
        try:
            removals = [head_removal(each, request, direction, earlier=earlier).to(device) for each in head.each]
        except UsageError:
            continue
        widths = [each.num_features for each in head.each]
        parts = zip(removals, torch.split(output.features, widths, dim=1), strict=True)
        after = right(torch.cat([removal(part) for removal, part in parts], dim=1))
        change = float((after - before)[~is_forgotten].mean())
        trials.append(Trial(direction=direction, left=float(after[is_forgotten].mean()), change=change))
    return trials


def _candidates(model: nn.Module) -> tuple[Layer, ...]:
    names = [name for name, module in model.named_modules() if is_head_layer(module)]
    layers = (Head(name, model.get_submodule(name)) for name in reversed(names))
    return tuple(_layer(layer) for layer in layers)


def _layers(model: nn.Module, head: Head) -> tuple[Layer, ...]:
    """Return the head, the heads that share its scores, and the heads that are used in training alone."""
    heads = heads_of(model, head)
    found_by = [head.found_by] * len(head.each) + [other.found_by for other in heads[len(head.each) :]]
    return tuple(map(_layer, heads, found_by))


def _layer(head: Head, found_by: str = "") -> Layer:
    module = head.module
    return Layer(
        name=head.name,
        kind=type(head.layer).__name__,
        num_classes=head.num_classes,
        num_features=head.num_features,
        found_by=found_by,
        removed=module.projector.rank if isinstance(module, ProjectedHead) else 0,
    )


def _normalisation(model: nn.Module) -> dict[str, int]:
    counts = Counter[str]()
    for module in model.modules():
        kind_name = next((name for name, kind in _NORMALISATION.items() if isinstance(module, kind)), None)
        class_name = type(module).__name__
        if kind_name is not None or class_name.endswith("RMSNorm"):
            counts[kind_name or "RMSNorm"] += 1
    return dict(counts)


def _floats(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.is_floating_point()]


def _entry(names: Sequence[str], classes: Sequence[int]) -> str:
    return ", ".join([f"'{name}'" for name in names] or [f"class {index}" for index in classes]) or "directions"
