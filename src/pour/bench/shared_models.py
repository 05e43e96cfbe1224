"""The models that the cells of an experiment share: the original, a retrained one and that of the next seed."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour._io import write_text
from pour._provenance import circumstances
from pour.bench.store import forget_name
from pour.data.digest import split_digest
from pour.data.registry import load_dataset
from pour.errors import UsageError
from pour.models.checkpoint import load, save
from pour.models.networks.registry import build_model
from pour.models.state import digest
from pour.training.frozen_backbone import FrozenBackbone
from pour.training.run import Run
from pour.training.tasks.classify import train_classifier

if TYPE_CHECKING:
    from torch import nn

    from pour.bench.experiments import Experiment
    from pour.data.dataset import ImageDataset
    from pour.training.run import Precision

__all__ = ["ModelKey", "SharedModel", "SharedModels", "SharedRole"]

SharedRole = Literal["original", "retrained", "ceiling"]
"""What a model is to a cell."""
TrainedRole = Literal["original", "retrained"]
# Independent of the original's seed: the same initialisation would make a retrained model more like it than chance.
_SEED_OFFSET: dict[TrainedRole, int] = {"original": 0, "retrained": 1000}


@dataclass(frozen=True, order=True)
class ModelKey:
    """Which model; the original of a seed serves all requests, so its ``forget`` is empty."""

    seed: int
    role: TrainedRole
    forget: tuple[int, ...] = ()

    @classmethod
    def of(cls, seed: int, role: SharedRole, forget: tuple[int, ...]) -> ModelKey:
        """The model that a cell of this seed and request needs.

        The ceiling is the retrained model of the next seed, so that a grid of three seeds retrains four models and not
        six.

        Example:
            >>> ModelKey.of(0, "ceiling", (3,)) == ModelKey.of(1, "retrained", (3,))
            True
        """
        if role == "original":
            return cls(seed, role)
        return cls(seed + 1 if role == "ceiling" else seed, "retrained", forget)

    @property
    def path(self) -> Path:
        """Where the store keeps it."""
        folder = Path("models") / f"seed-{self.seed}"
        folder = folder / forget_name(self.forget) if self.forget else folder
        return folder / f"{self.role}.safetensors"


@dataclass(frozen=True)
class SharedModel:
    """A model of the store."""

    model: nn.Module
    digest: str
    """SHA-256 of its weights."""
    data: str
    """SHA-256 of the images that the experiment had when it was trained."""


@dataclass
class SharedModels:
    """Trains, keeps and opens the shared models of an experiment; each is trained once.

    A model counts as there when its weights are whole and the file beside it says that it was trained in the same way;
    one that was trained on other images is refused.
    """

    experiment: Experiment
    out: Path
    root: Path | None
    device: str | None
    precision: Precision | None
    _checked: dict[tuple[object, ...], str | None] = field(default_factory=dict, repr=False)

    @cached_property
    def dataset(self) -> ImageDataset:
        """The experiment's data."""
        return load_dataset(self.experiment.dataset, self.root)

    @cached_property
    def data_digest(self) -> str:
        """SHA-256 of the training and test images."""
        names = sorted(self.dataset.splits, key=lambda name: (name not in ("train", "test"), name == "test", name))
        return "".join(split_digest(self.dataset.splits[name])[:32] for name in names)

    @cached_property
    def data_here(self) -> str | None:
        """The same, or None where the data is not here: results that are there can be shown without it."""
        try:
            return self.data_digest
        except UsageError:
            return None

    @cached_property
    def backbone(self) -> FrozenBackbone | None:
        """What heads are trained on where the experiment freezes the rest."""
        grid = self.experiment
        if not grid.freeze_backbone or grid.weights is None:
            return None
        return FrozenBackbone(self.dataset, grid.architecture, grid.weights, grid.image_size, grid.head)

    def prepare(self) -> None:
        """Read the data and the backbone now, and not when the first model needs them."""
        if self.backbone is not None:
            self.backbone.build()
        self.data_digest  # noqa: B018 - kept from here on

    def build(self) -> nn.Module:
        """A freshly initialised network."""
        height, _, channels = self.dataset.image_shape
        return build_model(
            self.experiment.architecture,
            self.dataset.num_classes,
            in_channels=channels,
            image_size=height,
            resize=self.experiment.image_size,
        )

    def ready(self, key: ModelKey) -> str | None:
        """The digest of a model that is there and was trained as the experiment says, else None."""
        version = self.version(key)
        if version not in self._checked:
            found = self._opened(key)
            if found is not None and self.data_here is not None:
                self._check_images(key, found)
            self._checked[version] = None if found is None else found.digest
        return self._checked[version]

    def version(self, key: ModelKey) -> tuple[object, ...]:
        """Changes when the files of a model do."""
        path = self.out / key.path
        files = (path, path.with_suffix(".json"))
        return (key, *((file.stat().st_mtime_ns, file.stat().st_size) if file.is_file() else None for file in files))

    def load(self, key: ModelKey) -> SharedModel:
        """A model that is there."""
        found = self._opened(key)
        path = self.out / key.path
        if found is None:
            raise UsageError(
                f"{path} is missing or damaged; every machine that works on the grid must see the same folder --out. "
                "Start the same command again to train what is missing."
            )
        self._check_images(key, found)
        return found

    def train(self, key: ModelKey) -> None:
        """Train a model unless it is there; a killed training goes on from its last saved state."""
        if self.ready(key) is not None:
            return
        run = Run(seed=key.seed + _SEED_OFFSET[key.role], device=self.device, precision=self.precision, progress=False)
        path = self.out / key.path
        started = time.perf_counter()
        without = list(key.forget) if key.forget else ()
        if self.backbone is not None:
            model, log = self.backbone.train_head(self.experiment.recipe, run, without=without)
        else:
            model, log = train_classifier(
                self.dataset,
                self.experiment.recipe,
                run,
                arch=self.experiment.architecture,
                without=without,
                weights=self.experiment.weights,
                image_size=self.experiment.image_size,
                resume=path.with_suffix(".resume"),
            )
        seconds = time.perf_counter() - started
        if self.backbone is not None:
            # The rest of the network is the same for all models, and in the file of weights.
            self.backbone.save_head(model, path)
        else:
            save(model.cpu(), path, overwrite=True)
        facts = {**self.identity(key), "data": self.data_digest, "precision": run.precision}
        write_text(path.with_suffix(".json"), json.dumps({**facts, "digest": _digest(model)}, indent=1))
        surroundings = {"seconds": seconds, "loop_seconds": log.seconds}
        surroundings |= circumstances(run.torch_device, run.precision)
        write_text(path.with_suffix(".run.json"), json.dumps(surroundings, indent=1))

    def _check_images(self, key: ModelKey, found: SharedModel) -> None:
        if found.data != self.data_digest:
            raise UsageError(
                f"{self.out / key.path} was trained on other images than {self.experiment.dataset} has now; give "
                "another folder --out, or remove its models."
            )

    def _opened(self, key: ModelKey) -> SharedModel | None:
        path = self.out / key.path
        try:
            stored = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            wanted = self.identity(key)
            if not isinstance(stored, dict):
                return None
            same = all(stored.get(name) == value for name, value in wanted.items())
            if not same or (self.precision is not None and stored.get("precision") != self.precision):
                return None
            model = load(path) if self.backbone is None else self.backbone.load_head(path)
        except (OSError, ValueError):
            # UsageError, the sentence for a damaged file, is a ValueError too: what cannot be read is trained again.
            return None
        found = SharedModel(model, _digest(model), str(stored.get("data")))
        return found if found.digest == stored.get("digest") else None

    def identity(self, key: ModelKey) -> dict[str, Any]:
        """What decides how a model comes about."""
        return {
            "dataset": self.experiment.dataset,
            "architecture": self.experiment.architecture,
            "recipe": asdict(self.experiment.recipe),
            "without": list(key.forget),
            "seed": key.seed + _SEED_OFFSET[key.role],
            **self.experiment.start,
        }


def _digest(model: nn.Module) -> str:
    return digest(model.state_dict())
