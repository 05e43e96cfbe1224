"""A task: the kind of samples, labels, network and loss of an experiment. Find a task by its name."""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
import torch

from pour._plug_ins import load_plug_ins
from pour._records import decode, record
from pour.data.splits import hold_out
from pour.errors import UsageError, warn
from pour.models.card import Training, card_of, change_card, set_class_names
from pour.models.checkpoint import load, save
from pour.models.head_on_images import FEW_IMAGES, head_on_images
from pour.models.modes import evaluating
from pour.models.output import scores_of
from pour.models.tap import device_of, on_device, to_unit
from pour.models.unwrap import unwrap
from pour.training.guard import check_sound
from pour.training.loop import fit
from pour.training.resume import ResumeFile

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from pour.data.classes import ClassRequest
    from pour.data.info import DatasetInfo
    from pour.data.loader import EpochLoader
    from pour.data.samples import IndexedSamples
    from pour.models.head import Head
    from pour.training.loop import TrainingLog
    from pour.training.recipes import Recipe
    from pour.training.run import Run

__all__ = [
    "Dataset",
    "Rows",
    "Score",
    "Task",
    "find_task",
    "get_task",
    "list_tasks",
    "record_head",
    "register_task",
    "setting_names",
    "task_of_labels",
]

# A task of this package registers when its module is imported, so that pour also runs from an unpacked source tree.
_BUILT_IN = {name: f"pour.training.tasks.{name}" for name in ("segment", "match", "classify")}
HELD_OUT = 0.1
"""Share of training samples that are held out for validation or tuning."""
# Number of samples on which a trained network is checked for scores that are not finite.
_FEW = 100
_TASKS: dict[str, type[Task[Any, Any]]] = {}


class Dataset(Protocol):
    """Named splits whose labels are indices of the same classes."""

    @property
    def name(self) -> str:
        """Name of the dataset."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by index."""

    @property
    def info(self) -> DatasetInfo:
        """Facts about the dataset."""

    @property
    def splits(self) -> Mapping[str, Any]:
        """Samples by the name of their split, with at least `train` and `test`."""


DatasetT = TypeVar("DatasetT", bound=Dataset)
SamplesT = TypeVar("SamplesT", bound="IndexedSamples")


@dataclass(frozen=True)
class Rows:
    """Feature vectors of a batch. One sample can have several, such as one per pixel."""

    features: Tensor
    """Feature vectors, (m, d)."""
    labels: Tensor
    """Class of each feature vector, (m,)."""
    samples: Tensor
    """Index in the batch of the sample that each feature vector belongs to, (m,)."""


@dataclass(frozen=True)
class Score:
    """One metric of a task, computed from the counts of samples."""

    values: Tensor
    """One value per set of samples, (k,); NaN if the metric is undefined."""
    classes: tuple[int, ...]
    """True classes whose labels the metric counts."""
    undefined: float | None = None
    """Value if the metric is undefined on all samples. None leaves the metric out."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC, Generic[DatasetT, SamplesT]):
    """One kind of experiment. The fields of a subclass are its settings; each has a default.

    Subclass it, decorate the subclass with `register_task`, and every command accepts the task. Packages register
    their tasks with the entry point group `pour.tasks`.
    """

    name: ClassVar[str]
    """Name in experiments and records."""
    metrics: ClassVar[tuple[str, ...]]
    """Metrics of the catalogue that tables and pages show by default."""
    one_label: ClassVar[bool] = False
    """Whether every sample has one label and one feature vector.

    An audit can then also probe the features and attack the training samples. Otherwise it reads only test samples.
    """
    knows_unseen: ClassVar[bool] = False
    """Whether a model can recognise classes that it was not trained on, as from their texts."""
    unit: ClassVar[str] = "image"
    """Noun for the labelled unit: `image` or `pixel`."""

    # Data

    @classmethod
    @abstractmethod
    def accepts(cls, data: str, arch: str | None) -> bool:
        """Return whether this task trains the network `arch` on the dataset with the name `data`."""

    @abstractmethod
    def defaults(self, data: str) -> tuple[str, str]:
        """Return the network and the recipe that the dataset with the name `data` gets by default."""

    @abstractmethod
    def load(self, name: str, root: str | Path | None = None, *, download: bool = False) -> DatasetT:
        """Open the dataset with the name `name` from the data folder `root`."""

    def split(self, dataset: DatasetT, name: str, limit: int | None = None) -> SamplesT:
        """Return the samples of a split, at most `limit` of them, evenly over the split."""
        samples: SamplesT = dataset.splits[name]
        if limit is None or limit >= len(samples):
            return samples
        if limit < 1:
            raise UsageError(f"limit is {limit}; take at least 1 sample.")
        return samples.take(np.arange(limit) * len(samples) // limit)

    @staticmethod
    def batch_size(run: Run) -> int:
        """Return the number of samples per batch when a model is evaluated."""
        return 1000

    def batches(self, samples: SamplesT, run: Run) -> EpochLoader:
        """Return the samples in their order as batches of inputs and labels on the device of `run`."""
        return samples.batches(self.batch_size(run), run.torch_device)

    @abstractmethod
    def digest(self, dataset: DatasetT) -> str:
        """Return the SHA-256 digest of the samples that training and audit read."""

    # Labels

    @abstractmethod
    def classes(self, dataset: DatasetT, request: ClassRequest) -> tuple[int, ...]:
        """Return the indices of the classes that `request` names."""

    def left_out(self, dataset: DatasetT, without: ClassRequest) -> tuple[int, ...]:
        """Return the indices of the classes that a training leaves out, which may be none."""
        return () if without in ((), []) else self.classes(dataset, without)

    @abstractmethod
    def belongs(self, labels: Tensor, classes: Collection[int]) -> Tensor:
        """Return whether each sample of a batch shows one of `classes`: (n,) boolean.

        Such a sample is a forget sample. Only its other pixels or tags count for the scores of retained classes.
        """

    @classmethod
    def fits(cls, labels: Tensor) -> bool:
        """Return whether a batch of labels belongs to this task. A task that returns False must be named."""
        return False

    @abstractmethod
    def rows(self, features: Tensor, labels: Tensor, model: nn.Module | None = None) -> Rows:
        """Return the feature vectors of a batch with their classes and samples; leave out void pixels.

        Args:
            features: Features that reach the head, (n, d) or (n, d, ...) for tokens and maps.
            labels: Labels of the batch.
            model: Network of the features. It may pad its inputs.
        """

    @abstractmethod
    def confusion(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Count the answers of each sample by true class (row) and predicted class (column): (n, C, C) integers.

        An image has one answer, a scene one per pixel. Intervals resample the first dimension, which counts samples.
        """

    def judged(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the true class, the predicted class and the index of the sample of each labelled unit.

        None, the default, if a unit can have several answers. Such models are not compared with chance.
        """
        return None

    def draw(self, samples: Any, classes: Collection[int], seed: int) -> Tensor | None:
        """Return labels that are void except where an audit keeps feature vectors. None keeps all of them."""
        return None

    def counts(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return counts per sample, (n, ...), whose sums over samples `scores` reads."""
        return self.confusion(scores, labels)

    def scores(self, counts: Tensor, classes: Collection[int], names: tuple[str, ...]) -> dict[str, Score]:
        """Return the metrics of answers by name; by default the accuracy on retained and on forgotten classes.

        Args:
            counts: Sums of `counts` over k sets of samples, (k, ...).
            classes: Forgotten classes.
            names: Names of all classes.
        """
        right, total = counts.diagonal(dim1=1, dim2=2), counts.sum(dim=2)
        sides = {"acc_r": set(range(len(names))) - set(classes), "acc_f": set(classes)}
        return {
            name: Score(right[:, list(side)].sum(dim=1) / total[:, list(side)].sum(dim=1), tuple(sorted(side)))
            for name, side in sides.items()
        }

    def check_head(self, head: Head, num_classes: int) -> None:
        """Raise UsageError if a model with the head `head` does not suit the task."""

    def hold_out(
        self, dataset: DatasetT, samples: SamplesT, classes: tuple[int, ...], seed: int
    ) -> tuple[SamplesT, SamplesT]:
        """Divide samples into training samples and a tenth of each class that is held out.

        Samples with several labels are divided by whether they show one of `classes`.
        """
        if self.one_label:
            return hold_out(samples, samples.labels, dataset.classes, HELD_OUT, seed)
        is_forgotten = self.belongs(torch.as_tensor(samples.labels), classes)
        names = " or ".join(dataset.classes[label] for label in classes)
        return hold_out(samples, np.where(is_forgotten, 0, 1), [names], HELD_OUT, seed)

    def request_fields(
        self,
        arch: str,
        dataset: DatasetT,
        classes: tuple[int, ...],
        *,
        train: SamplesT | None = None,
        validation: int | None = None,
    ) -> dict[str, Any]:
        """Return the fields of a `ForgetRequest` to forget `classes` in the network `arch`.

        Args:
            arch: Name of the network.
            dataset: Its data.
            classes: Indices of the classes.
            train: Training samples of the request; by default all of the dataset.
            validation: Seed with which a tenth of the training samples is held out for validation.
        """
        train = self.split(dataset, "train") if train is None else train
        if validation is None:
            return self.request_data(arch, dataset, classes, train)
        train, held_out = self.hold_out(dataset, train, classes, validation)
        return {**self.request_data(arch, dataset, classes, train), "validation": held_out.without(classes)}

    @abstractmethod
    def request_data(self, arch: str, dataset: DatasetT, classes: tuple[int, ...], train: SamplesT) -> dict[str, Any]:
        """Return the fields of a `ForgetRequest` that offers the training samples `train`."""

    # Results

    def readings(
        self,
        arch: str,
        dataset: DatasetT,
        classes: tuple[int, ...],
        models: Mapping[str, nn.Module],
        run: Run,
    ) -> dict[str, dict[str, float]]:
        """Return readings of a stored result that the audit does not have: `value` and number `n`, by name.

        Args:
            arch: Network of the models.
            dataset: Dataset that `load` has opened.
            classes: Forgotten classes.
            models: The models `original` and `unlearned`.
            run: Device of the models.
        """
        return {}

    def is_quick(self, arch: str) -> bool:
        """Return whether the network `arch` needs no training loop, so that a grid prepares the models of all seeds.

        Such a task defines `train_quickly`.
        """
        return False

    # Training

    def identity(self) -> dict[str, Any]:
        """Return the settings that decide the weights of a trained network, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def cell_identity(self) -> dict[str, Any]:
        """Return the settings that a stored result contains, ready for JSON."""
        return self.identity()

    @abstractmethod
    def build(self, arch: str, dataset: DatasetT) -> nn.Module:
        """Return the network `arch` for the classes of `dataset`, as training starts from it."""

    @abstractmethod
    def loss(self, samples: SamplesT, run: Run) -> Callable[..., Tensor]:
        """Return the objective of training on `samples`: `loss(model, inputs, labels)`."""

    def train(
        self,
        dataset: DatasetT,
        recipe: Recipe,
        run: Run,
        *,
        arch: str,
        without: ClassRequest = (),
        resume: Path | None = None,
        resume_seconds: float = 20.0,
    ) -> tuple[nn.Module, TrainingLog]:
        """Train the network `arch`; with `without`, train the retrained reference without these classes.

        The head has a score for every class of the dataset, also for the classes of `without`.

        Args:
            dataset: Training samples.
            recipe: Optimiser, schedule and length of the training.
            run: Seed, device, precision and progress bar.
            arch: A name from `pour.list_models`.
            without: Classes to leave out, by name or index.
            resume: File that keeps the state of an unfinished training. The same call resumes it.
            resume_seconds: Shortest time between two writes of that file.
        """
        if self.is_quick(arch):
            return self.train_quickly(dataset, recipe, run, arch, without)
        left_out = self.left_out(dataset, without)
        samples = self.split(dataset, "train")
        if left_out:
            samples = samples.without(left_out)
        with run.seeded():
            model = self.build(arch, dataset)
        set_class_names(model, dataset.classes)
        file = None
        if resume is not None:
            decisive = {
                "arch": arch,
                "settings": self.identity(),
                "data": self.digest(dataset),
                "without": left_out,
                "recipe": asdict(recipe),
                "seed": run.seed,
                "precision": run.precision,
            }
            file = ResumeFile(path=resume, fingerprint=json.dumps(decisive, sort_keys=True), seconds=resume_seconds)
        batches = samples.batches(
            recipe.batch_size,
            run.torch_device,
            seed=run.seed,
            shuffle=True,
            augment=recipe.augment,
            mirrors=dataset.info.mirrors,
            drop_last=True,
        )
        log = fit(
            model,
            batches,
            recipe,
            run,
            objective=self.loss(samples, run),
            resume=file,
            description=f"training {arch} on {dataset.name}",
        )
        few = samples.take(np.arange(min(_FEW, len(samples))))
        check_sound(model, next(iter(self.batches(few, run)))[0])
        result = self.finish(model, dataset, arch)
        change_card(result, training=Training(dataset=dataset.name, left_out=left_out))
        return result, log

    def train_quickly(
        self, dataset: DatasetT, recipe: Recipe, run: Run, arch: str, without: ClassRequest
    ) -> tuple[nn.Module, TrainingLog]:
        """Return a network for which `is_quick` is true; see `train`."""
        raise NotImplementedError

    def finish(self, model: nn.Module, dataset: DatasetT, arch: str) -> nn.Module:
        """Return a trained network as it is stored and used."""
        return model

    def answers(self, model: nn.Module, samples: SamplesT, run: Run) -> Tensor:
        """Return the sum of `counts` over `samples`, by default answers by true and predicted class: (C, C)."""
        network = unwrap(model)
        with on_device(network, run.torch_device), evaluating(network), torch.inference_mode():
            parts = [
                self.counts(scores_of(network(to_unit(inputs))), labels).sum(dim=0)
                for inputs, labels in self.batches(samples, run)
            ]
        return torch.stack(parts).sum(dim=0)

    @abstractmethod
    def describe(self, model: nn.Module, dataset: DatasetT, run: Run, *, without: ClassRequest = ()) -> dict[str, Any]:
        """Return the scores of a trained model on every split, ready for JSON."""

    def record_scores(self, model: nn.Module, described: Mapping[str, Any]) -> None:
        """Store the result of `describe` in the card of a trained model, for later checks of the model."""
        training = card_of(model).training
        if training is not None:
            change_card(model, training=replace(training, **self.recorded_scores(described)))

    def recorded_scores(self, described: Mapping[str, Any]) -> dict[str, Any]:
        """Return `accuracy` by split and `class_accuracy` on the test split of `describe`, if it has them."""
        names = ("accuracy", "class_accuracy")
        return {name: described[name] for name in names if name in described}

    @abstractmethod
    def summary(self, described: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the result of `describe` as the header and the lines of a small table."""

    def save(self, model: nn.Module, path: Path, dataset: DatasetT, arch: str) -> None:
        """Write a trained model to `path`."""
        save(model.cpu(), path, overwrite=True)

    def load_model(self, path: Path, dataset: DatasetT, arch: str) -> nn.Module:
        """Return the model that `save` wrote."""
        return load(path)


def record_head(model: nn.Module, samples: IndexedSamples) -> None:
    """Find the head of a network of the user's own code on a few samples, and write its name to the card."""
    few = samples.take(np.arange(min(FEW_IMAGES, len(samples))))
    inputs, _ = next(iter(few.batches(FEW_IMAGES, device_of(model))))
    change_card(model, head=head_on_images(model, inputs).name)


TaskT = TypeVar("TaskT", bound=type[Task[Any, Any]])


def register_task(task: TaskT) -> TaskT:
    """Class decorator: register a task under its `name`. Raise UsageError if the class is no valid task."""
    if not isinstance(task, type) or not issubclass(task, Task):
        raise UsageError(f"A task is a subclass of pour.training.Task, not {task!r}.")
    for attribute in ("name", "metrics"):
        if not hasattr(task, attribute):
            raise UsageError(f"The task {task.__name__} has no {attribute}; set it as a class attribute.")
    if missing := sorted(task.__abstractmethods__):
        raise UsageError(f"The task {task.name} has no method {missing[0]}; define it.")
    other = _TASKS.get(task.name)
    # Defining the same class again, as in a notebook, replaces it.
    if other is not None and (other.__module__, other.__qualname__) != (task.__module__, task.__qualname__):
        raise UsageError(f"There is already a task {task.name!r}, in {other.__module__}; choose another name.")
    _TASKS[task.name] = record()(task)
    return task


def list_tasks() -> tuple[str, ...]:
    """Return the names of all tasks.

    Examples:
        >>> sorted(list_tasks())[:3]
        ['classify', 'match', 'segment']
    """
    load_plug_ins("task", register_task)
    return tuple(dict.fromkeys((*_BUILT_IN, *_TASKS)))


def get_task(name: str, **settings: Any) -> Task[Any, Any]:
    """Return the task `name` with these settings, and import only its module. Raise UsageError for an unknown name.

    Examples:
        >>> get_task("segment", enlarge=2).identity()["enlarge"]
        2
    """
    if name not in _TASKS and name in _BUILT_IN:
        importlib.import_module(_BUILT_IN[name])
    if name not in _TASKS and name not in list_tasks():
        raise UsageError(f"There is no task {name!r}; the tasks are {', '.join(list_tasks())}.")
    setting_fields = tuple(field.name for field in fields(_TASKS[name]))
    unknown = [setting for setting in settings if setting not in setting_fields]
    if unknown:
        raise UsageError(
            f"The task {name!r} has no setting {unknown[0]!r}; it has {', '.join(setting_fields) or 'none'}."
        )
    return decode(_TASKS[name], json.dumps(settings), f"The task {name!r}") if settings else _TASKS[name]()


def setting_names(name: str) -> tuple[str, ...]:
    """Return the names of the settings of the task `name`."""
    return tuple(field.name for field in fields(type(get_task(name))))


def task_of_labels(labels: Tensor) -> str:
    """Return the name of the task that a batch of labels belongs to.

    Examples:
        >>> import torch
        >>> task_of_labels(torch.tensor([0, 1])), task_of_labels(torch.zeros(1, 4, 4, dtype=torch.int64))
        ('classify', 'segment')
    """
    if type(get_task("classify")).fits(labels):
        return "classify"
    for name in list_tasks():
        if _says_yes(name, "fits", labels):
            return name
    raise UsageError(f"No task has labels of shape {tuple(labels.shape)}; name the task.")


def find_task(data: str, arch: str | None = None) -> str:
    """Return the name of the task that trains the network `arch` on the dataset `data`.

    Examples:
        >>> find_task("camvid"), find_task("digits"), find_task("digits", "clip-resnet-digits")
        ('segment', 'classify', 'match')
    """
    for name in list_tasks():
        if name != "classify" and _says_yes(name, "accepts", data, arch):
            return name
    return "classify"


def _says_yes(name: str, question: str, *arguments: Any) -> bool:
    """Return the answer of a task's class method. A task of another package that raises causes a warning."""
    try:
        return bool(getattr(type(get_task(name)), question)(*arguments))
    except Exception as error:
        if name in _BUILT_IN:
            raise
        warn(f"The task {name!r} is left out: {question} raised {type(error).__name__}.")
        return False
