"""An experiment as data: dataset, network, training, forgotten classes, rows and columns of the table.

A TOML file describes an experiment. The folder `experiments/` contains the built-in files.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pour._records import Json, Option, convert, read, record
from pour.bench.columns import TableLayout, find_column
from pour.bench.rows import Row, Variant, expand_rows, read_options
from pour.errors import UsageError, nearest_name
from pour.models.networks.user_network import is_user_network
from pour.training.recipes import RECIPES, Recipe, get_recipe
from pour.training.tasks.task import get_task, setting_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pour.training.tasks.task import Task

__all__ = ["EXPERIMENTS", "Experiment", "ExperimentFile", "SharedRole", "get_experiment", "parse_seeds"]

_FOLDER = Path(__file__).with_name("experiments")
EXPERIMENTS = ("digits", "cifar10", "cifar10-small", "cifar100", "pathmnist", "camvid", "voc2012", "zeroshot")
"""Names of the built-in experiments. `digits` takes about a minute on a CPU."""
SharedRole = Literal["original", "retrained", "ceiling"]
"""Role of a trained model in a cell."""
Request = int | str | tuple[int | str, ...]
"""Class that is forgotten, by index or name, or classes that are forgotten together."""
_MOST_SEEDS = 10_000
# The seed of a retrained model is larger by a thousand.
_LARGEST_SEED = 2**62


@dataclass(frozen=True, kw_only=True)
class _Keys:
    """Keys that an experiment's file contains as the experiment has them."""

    task: str = "classify"
    """Task: classify, segment, match, or a task of another package."""
    dataset: str
    """Dataset: a name from `pour datasets`, a folder or `FILE.npz`."""
    together: bool = False
    """Whether a last request forgets all classes of `forget` together."""
    tuning_forget: tuple[int | str, ...] = ()
    """Classes that `pour tune` forgets, by index or name. They are not in `forget`."""
    seeds: tuple[int, ...] = (0,)
    """Seeds of the training."""
    table: TableLayout = field(default_factory=TableLayout)
    """Arrangement of the table."""
    columns: tuple[str, ...] = ()
    """Columns of the table, by default the columns of the task."""
    pictures: tuple[str, ...] = ()
    """Rows whose pictures are saved, if the task has pictures."""


@dataclass(frozen=True, kw_only=True)
class Experiment(_Keys):
    """A grid of rows times seeds times requests to forget, over models that its cells share.

    Examples:
        >>> experiment = get_experiment("digits")
        >>> experiment.dataset, experiment.forget, [row.name for row in experiment.rows][:3]
        ('digits', ((3,),), ['original', 'retrained', 'ceiling'])
    """

    name: str
    settings: Mapping[str, Option] = field(default_factory=dict)
    """Settings of the task."""
    architecture: str
    """A name from `pour.list_models`."""
    recipe: Recipe
    """Training of the original and the retrained models."""
    forget: tuple[tuple[int | str, ...], ...]
    """Requests: each a tuple of classes that are forgotten together."""
    rows: tuple[Row, ...]
    folder: Path | None = None
    """Folder of the experiment's file. A relative path of a dataset begins there."""

    def __post_init__(self) -> None:
        for part, values in (("requests to forget", self.forget), ("seeds", self.seeds), ("rows", self.rows)):
            if not values:
                raise UsageError(f"The experiment {self.name} has no {part}; give at least one.")
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise UsageError(f"The experiment {self.name} names a row twice; give each row its own name.")
        for key in self.columns:
            find_column(key)
        if min(self.seeds) < 0:
            raise UsageError(f"A seed must not be negative, but is {min(self.seeds)}.")
        if is_user_network(self.architecture):
            raise UsageError(
                f"The experiment {self.name} has the network {self.architecture!r} of the user's own code, which no "
                "file may import; take one of pour models, or use pour train, unlearn and audit with --arch."
            )
        self.get_task()

    def get_task(self) -> Task[Any, Any]:
        """Return the task with the experiment's settings."""
        return get_task(self.task, **self.settings)

    @property
    def dataset_path(self) -> str:
        """The dataset's name as a task opens it: a relative path begins at the folder of the experiment's file."""
        kind, path = ("folder:", self.dataset[7:]) if self.dataset.startswith("folder:") else ("", self.dataset)
        is_path = bool(kind) or path.endswith(".npz")
        return self.dataset if self.folder is None or not is_path else f"{kind}{self.folder / path}"

    def select(self, methods: Iterable[str] | None) -> tuple[Row, ...]:
        """Return the rows of methods, named by method ("delete") or row ("delete-common"), and all references."""
        if methods is None:
            return self.rows
        selected = set(methods)
        names = {name for row in self.rows for name in (row.name, row.method) if name is not None}
        for name in selected - names:
            hint = nearest_name(name, names, f"it has {', '.join(sorted(names))}.")
            raise UsageError(f"{self.name} has no method {name!r}; {hint}")
        return tuple(row for row in self.rows if row.method is None or {row.name, row.method} & selected)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Settings that decide the weights of the trained models, except seed and classes, ready for JSON."""
        return {
            "dataset": self.dataset,
            "architecture": self.architecture,
            "recipe": asdict(self.recipe),
            **self.get_task().identity(),
        }

    @cached_property
    def cell_identity(self) -> dict[str, Any]:
        """Settings that all cells share, ready for JSON."""
        models = {name: self.identity[name] for name in ("dataset", "architecture", "recipe")}
        return {**models, **self.get_task().cell_identity()}

    @property
    def roles(self) -> tuple[SharedRole, ...]:
        """Roles of the trained models: the original, and the retrained models among the rows."""
        return tuple(
            role for role in get_args(SharedRole) if role == "original" or any(row.name == role for row in self.rows)
        )


@record()
class ExperimentFile(_Keys):
    """Content of an experiment's TOML file. A relative path begins at the folder of the file."""

    base: str | None = None
    """Experiment whose keys hold unless this file gives them: a built-in name or a path."""
    name: str | None = None
    """Name in results, by default the name of the file."""
    architecture: str | None = None
    """Network: a name from `pour models`; by default the network that the task takes for the dataset."""
    recipe: str | dict[str, Option] | None = None
    """Name of a recipe, or a table of a recipe's fields, whose `name` gives the other fields."""
    settings: dict[str, Option] = field(default_factory=dict)
    """Settings of the task."""
    forget: tuple[Request, ...]
    """Requests: each is a class by index or name, or a list of classes that are forgotten together."""
    rows: tuple[str | Row, ...]
    """Names of groups (references, paper, anchored, controls, relatives, others) and of methods, or tables."""
    variants: tuple[Variant, ...] = ("common", "tuned")
    """Variants of each iterative method that have a row."""
    tuning: str | None = None
    """Folder of `pour tune` for the tuned rows, by default the tuned options that ship with pour."""
    row_notes: dict[str, str] = field(default_factory=dict)
    """Notes of rows, by row. They replace the notes in `rows`."""

    def experiment(self, name: str, folder: Path | None) -> Experiment:
        """Return the experiment with all rows and defaults."""
        settings = read_options(self.settings)
        network, recipe = get_task(self.task, **settings).defaults(self.dataset)
        network = self.architecture or network
        rows = expand_rows(
            self.rows,
            self.dataset,
            variants=self.variants,
            tuning=None if self.tuning is None else Path(self.tuning),
            architecture=network,
        )
        return Experiment(
            name=self.name or name,
            settings=settings,
            architecture=network,
            recipe=_recipe(self.recipe or recipe),
            forget=tuple(item if isinstance(item, tuple) else (item,) for item in self.forget),
            # The option value "null" of a file stands for None.
            rows=tuple(
                replace(row, options=read_options(row.options), note=self.row_notes.get(row.name, row.note))
                for row in rows
            ),
            folder=folder,
            **{key.name: getattr(self, key.name) for key in fields(_Keys)},
        )


def _recipe(recipe: str | dict[str, Option]) -> Recipe:
    """Return the recipe with this name, or with the name and the changes of a table."""
    if isinstance(recipe, str):
        return get_recipe(recipe)
    changes = read_options(recipe)
    name = str(changes.get("name"))
    return get_recipe(name, changes) if name in RECIPES else convert(Recipe, changes, "The recipe")


def get_experiment(experiment: str | Path, changes: Mapping[str, Any] | None = None) -> Experiment:
    """Return a built-in experiment by its name, or the experiment in a TOML file.

    Args:
        experiment: A name of `EXPERIMENTS`, or a path that ends in `.toml` or contains a separator.
        changes: Values that replace those of the file, by key. `"recipe.epochs"` is a key inside a table. A setting
            of the task may be named without `settings.`.

    Raises:
        UsageError: There is no such experiment, or its file has a wrong key or value.

    Examples:
        >>> get_experiment("cifar10", {"recipe.epochs": 2, "seeds": [7]}).recipe.epochs
        2
    """
    path = _path(str(experiment))
    content = _content(path)
    task = str(content.get("task", "classify"))
    for key, value in (changes or {}).items():
        names = ("settings", key) if key not in _KEYS and key in setting_names(task) else tuple(key.split("."))
        for name in reversed(names):
            value = {name: value}
        content = _merged(content, value)
    is_built_in = path.parent == _FOLDER
    source = f"The experiment {path.stem}" if is_built_in else str(path)
    file = convert(ExperimentFile, content, f"{source} with the changed settings" if changes else source)
    try:
        return file.experiment(path.stem, None if is_built_in else path.resolve().parent)
    except UsageError as error:
        raise UsageError(str(error) if is_built_in else f"{path} cannot be used: {error}") from error


_KEYS = tuple(field.name for field in fields(ExperimentFile))


def _path(experiment: str) -> Path:
    """Return the file of a built-in experiment, or the path itself."""
    if experiment in EXPERIMENTS:
        return _FOLDER / f"{experiment}.toml"
    if experiment.endswith(".toml") or "/" in experiment or os.sep in experiment:
        return Path(experiment)
    raise UsageError(
        f"There is no experiment {experiment!r}; the experiments are {', '.join(EXPERIMENTS)}, or give a TOML file."
    )


def _content(path: Path) -> dict[str, Any]:
    """Return the keys of a file and of the experiments that it is based on, with paths from the folder of the file."""
    content = read(dict[str, Json], path)
    folder = path.resolve().parent
    if isinstance(content.get("tuning"), str):
        content["tuning"] = str(folder / content["tuning"])
    if isinstance(content.get("settings"), dict):
        # A setting such as the weights is a name or a file.
        files = {key: folder / str(value) for key, value in content["settings"].items() if isinstance(value, str)}
        content["settings"] |= {key: str(file) for key, file in files.items() if file.is_file()}
    base = content.pop("base", None)
    if base is None:
        return content
    if not isinstance(base, str):
        raise UsageError(f"{path} has the value {base!r} for base, which must be a name or a path; correct it.")
    return _merged(_content(_path(base) if base in EXPERIMENTS else folder / base), content)


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of both. A table of `upper` changes the table of `lower`, unless it names another recipe."""
    merged = {**lower, **upper}
    for key in ("recipe", "settings", "row_notes", "table"):
        below, above = lower.get(key, {}), upper.get(key)
        below = {"name": below} if isinstance(below, str) else below
        if isinstance(above, dict) and isinstance(below, dict) and not (key == "recipe" and "name" in above):
            merged[key] = {**below, **above}
    return merged


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return the seeds of a command line: a number of seeds, or seeds with commas between or after them.

    Examples:
        >>> parse_seeds("3"), parse_seeds("1,2"), parse_seeds("7,")
        ((0, 1, 2), (1, 2), (7,))
    """
    listed = [part.strip() for part in text.split(",") if part.strip()]
    numbers = [int(part) for part in listed if part.isdecimal()]
    if not numbers or len(numbers) < len(listed) or ("," not in text and numbers[0] < 1):
        raise UsageError(f"Seeds are a number of them (3) or a list (1,2), but are {text!r}.")
    if max(numbers) >= (_LARGEST_SEED if "," in text else _MOST_SEEDS):
        raise UsageError(f"{text} asks for too much: at most {_MOST_SEEDS} seeds, each below 2^62.")
    return tuple(dict.fromkeys(numbers)) if "," in text else tuple(range(numbers[0]))
