"""The segmentation experiments as data: which network, which classes are forgotten, and by which methods."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from pour.bench.experiments import Row
from pour.bench.settings import NOT_TUNED
from pour.bench.store import StoredExperiment
from pour.errors import UsageError
from pour.training.recipes import Recipe, get_recipe

__all__ = ["SCENE_EXPERIMENTS", "SceneExperiment", "scene_experiment"]

SCENE_EXPERIMENTS = ("camvid", "voc2012")
SCENE_COLUMNS = ("iou_r", "iou_r_rest", "iou_f", "cka_f_o", "cka_r_o", "rus_o", "raw.rus_o")
_NOTES = (
    "IoU in percent, the change from before in brackets; the mean over retained classes (r) or that of the forgotten "
    "class (f) on the test images, void left out.",
    "IoU_r counts the forgotten class's pixels as false positives of whatever they become; rest leaves them out.",
    "RUS(o), encoder: of the features before the projector, which POUR-P does not change.",
)
_CONTROL: dict[str, Any] = {"setting": "closed form", "family": "control"}
_CLOSED: dict[str, Any] = {"setting": "closed form", "family": "paper"}
_ROWS = (
    Row(name="original", method=None, setting="reference", family="reference", label="before"),
    Row(name="masked-head", method="masked-head", **_CONTROL),
    Row(name="random-direction", method="random-direction", **_CONTROL),
    Row(
        name="pour-p-keep",
        method="pour-p",
        options={"forgotten_logit": "keep", "direction": "weights"},
        label="POUR-P, logit kept",
        **_CLOSED,
    ),
    Row(name="pour-p", method="pour-p", options={"direction": "weights"}, label="POUR-P, logit masked", **_CLOSED),
    Row(
        name="pour-p-centered",
        method="pour-p",
        label="POUR-P, centred rows, logit kept",
        options={"forgotten_logit": "keep", "direction": "centered-weights"},
        **_CLOSED,
    ),
    Row(
        name="pour-d",
        method="pour-d",
        setting="tuned",
        family="paper",
        options={
            "steps": 400,
            "batch_size": 16,
            "lr": 3e-4,
            "schedule": "one-cycle",
            "optimizer": "adamw",
            "direction": "centered-weights",
            "other_pixels": "project",
        },
        note=f"{NOT_TUNED} on this data; the options are those chosen on CamVid",
    ),
)
_CAMVID_NOTES = {"pour-d": "rate chosen on car and 60 test images, with a network of 9 epochs"}


@dataclass(frozen=True, kw_only=True)
class SceneExperiment:
    """A segmentation network, and the classes that are forgotten from it one at a time."""

    name: str
    dataset: str
    architecture: str
    recipe: Recipe
    forget: tuple[str, ...]
    """Names of the classes; each is a request of its own."""
    enlarge: int = 1
    """Images are enlarged by this factor inside the network."""
    seeds: tuple[int, ...] = (0,)
    rows: tuple[Row, ...] = _ROWS

    def stored(self, forget: tuple[tuple[int, ...], ...]) -> StoredExperiment:
        """Return what a store says of the experiment.

        Args:
            forget: Indices of the forgotten classes, one tuple per request.
        """
        return StoredExperiment(
            name=self.name,
            dataset=self.dataset,
            architecture=self.architecture,
            recipe=asdict(self.recipe),
            forget=forget,
            seeds=self.seeds,
            rows=self.rows,
            task="segment",
            layout="classes",
            columns=SCENE_COLUMNS,
            notes=_NOTES,
        )


def scene_experiment(name: str) -> SceneExperiment:
    """The experiment of that name.

    Example:
        >>> scene_experiment("camvid").forget
        ('car', 'pedestrian', 'bicyclist', 'fence', 'pole')
    """
    if name == "camvid":
        return SceneExperiment(
            name=name,
            dataset=name,
            architecture="smp:deeplabv3plus:tu-tf_efficientnet_lite0",
            recipe=get_recipe("scenes").change(epochs=100),
            forget=("car", "pedestrian", "bicyclist", "fence", "pole"),
            enlarge=2,
            rows=tuple(replace(row, note=_CAMVID_NOTES.get(row.name, row.note)) for row in _ROWS),
        )
    if name == "voc2012":
        return SceneExperiment(
            name=name,
            dataset=name,
            architecture="smp:deeplabv3plus:resnet101",
            recipe=get_recipe("scenes").change(epochs=50),
            forget=("dog", "cat", "bicycle", "chair", "bottle"),
        )
    raise UsageError(f"There is no segmentation experiment {name!r}; known are {', '.join(SCENE_EXPERIMENTS)}.")
