"""The models that the cells of an experiment share: the original, a retrained model, and another of the next seed."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour._io import write_text
from pour._provenance import circumstances
from pour._records import Json, read
from pour.bench.experiment import Experiment, SharedRole, get_experiment
from pour.bench.store import check_folder, forget_name, settled_precision
from pour.errors import UsageError
from pour.models.state import digest
from pour.training.run import Run

if TYPE_CHECKING:
    from torch import nn

    from pour.training.run import Precision
    from pour.training.tasks.task import Task

__all__ = ["ModelKey", "SharedModel", "SharedModels"]

TrainedRole = Literal["original", "retrained"]
# The seed differs from the original's seed. With the same initialisation, a retrained model would be more similar to
# the original.
_SEED_OFFSET: dict[TrainedRole, int] = {"original": 0, "retrained": 1000}


@dataclass(frozen=True, order=True)
class ModelKey:
    """Seed, role and request of a model. The original of a seed serves all requests, so its `forget` is empty."""

    seed: int
    role: TrainedRole
    forget: tuple[int, ...] = ()

    @classmethod
    def of(cls, seed: int, role: SharedRole, forget: tuple[int, ...]) -> ModelKey:
        """Return the key of the model with this role in the cells of a seed and a request.

        The ceiling is the retrained model of the next seed, so that a grid of three seeds retrains four models and not
        six.

        Examples:
            >>> ModelKey.of(0, "ceiling", (3,)) == ModelKey.of(1, "retrained", (3,))
            True
        """
        if role == "original":
            return cls(seed, role)
        return cls(seed + 1 if role == "ceiling" else seed, "retrained", forget)

    @property
    def path(self) -> Path:
        """Path of the model's file in the store."""
        folder = Path("models") / f"seed-{self.seed}"
        folder = folder / forget_name(self.forget) if self.forget else folder
        return folder / f"{self.role}.safetensors"


@dataclass(frozen=True)
class SharedModel:
    """A model of the store."""

    model: nn.Module
    digest: str
    """SHA-256 of its weights."""


@dataclass
class SharedModels:
    """Trains, stores and loads the shared models of an experiment. Each is trained once.

    A stored model is used if its weights are intact and the file beside it names the same training. A model that was
    trained on other samples is refused.
    """

    experiment: Experiment
    out: Path
    root: Path | None
    device: str | None
    precision: Precision | None
    _checked: dict[tuple[object, ...], str | None] = field(default_factory=dict, repr=False)

    @classmethod
    def open(
        cls,
        experiment: Experiment | str,
        out: str | Path,
        root: str | Path | None,
        device: str | None,
        precision: Precision | None,
    ) -> SharedModels:
        """Return the shared models of the store in `out`.

        Args:
            experiment: An experiment, the name of a built-in one, or the path of a TOML file.
            out: Folder of the store, which may be missing.
            root: Data folder.
            device: Device of the training.
            precision: Precision of the training, by default the precision of the stored cells and models.
        """
        folder = Path(out).resolve()
        grid = get_experiment(experiment) if isinstance(experiment, str) else experiment
        check_folder(folder)
        return cls(grid, folder, None if root is None else Path(root), device, settled_precision(folder, precision))

    @cached_property
    def task(self) -> Task[Any, Any]:
        """The task of the experiment."""
        return self.experiment.get_task()

    @property
    def is_quick(self) -> bool:
        """Whether each model is ready in seconds."""
        return self.task.is_quick(self.experiment.architecture)

    @cached_property
    def dataset(self) -> Any:
        """The dataset of the experiment."""
        return self.task.load(self.experiment.dataset_path, self.root)

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 of the samples that training and audit read."""
        return self.task.digest(self.dataset)

    @cached_property
    def present_digest(self) -> str | None:
        """The same digest, or None if the dataset is missing: finished results can be shown without it."""
        try:
            return self.data_digest
        except UsageError:
            return None

    def build(self) -> nn.Module:
        """Return the network as training starts from it."""
        return self.task.build(self.experiment.architecture, self.dataset)

    def ready(self, key: ModelKey) -> str | None:
        """Return the digest of a stored model with the training of the experiment, otherwise None."""
        version = self.version(key)
        if version not in self._checked:
            stored_model = self._stored(key)
            self._checked[version] = None if stored_model is None else stored_model.digest
        return self._checked[version]

    def version(self, key: ModelKey) -> tuple[object, ...]:
        """Return a value that changes with the files of a model."""
        path = self.out / key.path
        files = (path, path.with_suffix(".json"))
        return (key, *((file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None for file in files))

    def load(self, key: ModelKey) -> SharedModel:
        """Return a stored model. Raise UsageError if it is missing or damaged."""
        stored_model = self._stored(key)
        if stored_model is None:
            raise UsageError(
                f"{self.out / key.path} is missing or damaged; every machine that works on the grid must see this "
                "folder. Start the same command again to train what is missing."
            )
        return stored_model

    def train(self, key: ModelKey) -> None:
        """Train a model unless it is stored. A killed training resumes from its last saved state."""
        if self.ready(key) is not None:
            return
        experiment, path = self.experiment, self.out / key.path
        run = Run(seed=key.seed + _SEED_OFFSET[key.role], device=self.device, precision=self.precision, progress=False)
        started = time.perf_counter()
        model, log = self.task.train(
            self.dataset,
            experiment.recipe,
            run,
            arch=experiment.architecture,
            without=list(key.forget),
            resume=path.with_suffix(".resume"),
        )
        seconds = time.perf_counter() - started
        path.parent.mkdir(parents=True, exist_ok=True)
        self.task.save(model, path, self.dataset, experiment.architecture)
        facts = {
            **self.identity(key),
            "data": self.data_digest,
            "precision": run.precision,
            "digest": digest(model.state_dict()),
        }
        write_text(path.with_suffix(".json"), json.dumps(facts, indent=1))
        surroundings = {"seconds": seconds, "loop_seconds": log.seconds}
        surroundings |= circumstances(run.torch_device, run.precision)
        write_text(path.with_suffix(".run.json"), json.dumps(surroundings, indent=1))

    def identity(self, key: ModelKey) -> dict[str, Any]:
        """Return everything that decides the weights of a model, except samples and precision."""
        return {
            **self.experiment.identity,
            "without": list(key.forget),
            "seed": key.seed + _SEED_OFFSET[key.role],
        }

    def _stored(self, key: ModelKey) -> SharedModel | None:
        """Return a stored model, or None if its files do not suffice. Raise UsageError for other samples."""
        path = self.out / key.path
        try:
            stored = read(dict[str, Json], path.with_suffix(".json"))
            same = all(stored.get(name) == value for name, value in self.identity(key).items())
            if not same or (self.precision is not None and stored.get("precision") != self.precision):
                return None
            model = self.task.load_model(path, self.dataset, self.experiment.architecture)
        except (OSError, UsageError):
            # A model that is missing or unreadable is trained again.
            return None
        weights_digest = digest(model.state_dict())
        if weights_digest != stored.get("digest"):
            return None
        if self.present_digest not in (None, stored.get("data")):
            raise UsageError(
                f"{path} was trained on other images than {self.experiment.dataset} has now; give another folder "
                "with out=, or remove its models."
            )
        return SharedModel(model, weights_digest)
