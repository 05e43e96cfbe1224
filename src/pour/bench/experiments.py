"""The paper's experiments as data: what is trained, what is forgotten, by which methods, and what is reported."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pour._records import Option, record
from pour.bench.columns import BOTH_TEST_SETS, COLUMNS, PAPER_COLUMNS
from pour.bench.settings import (
    CLOSED_FORM,
    CLOSED_FORM_BY_DATASET,
    NOT_TUNED,
    check_tuning,
    closed_form_options,
    common_options,
    tuned_options,
)
from pour.errors import UsageError
from pour.models.networks.pretrained import PRETRAINED, read_weights
from pour.models.state import digest
from pour.training.recipes import Recipe, get_recipe
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method, list_methods
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from pour.training.frozen_backbone import HeadShape

__all__ = [
    "EXPERIMENTS",
    "REFERENCES",
    "START",
    "Experiment",
    "Family",
    "Row",
    "Setting",
    "benchmark_rows",
    "check_row_name",
    "get_experiment",
    "parse_seeds",
]

Setting = Literal["reference", "closed form", "common", "tuned", "default"]
"""How a row's options came about: the rivals' common code base, the same tuning for all, the method's own defaults, or
nothing to tune."""
Family = Literal["reference", "paper", "control", "relative"]
"""Why a row is in the table."""

# What exported stores may hold.
_ROW_NAME = re.compile(r"[\w.+-]+")
_MOST_SEEDS = 10_000
# A retrained model has a seed of its own, a thousand further on.
_LARGEST_SEED = 2**62
REFERENCES = ("original", "retrained", "ceiling")
"""Rows that are models of the experiment themselves; the ceiling is a second retrained seed."""
PAPER = (
    "finetune",
    "fcs",
    "salun",
    "scrub",
    "sure",
    "projun",
    "random-label",
    "gradient-ascent",
    "boundary-shrink",
    "boundary-expand",
    "delete",
    "pour-p",
    "pour-d",
)
START = ("weights", "freeze_backbone", "image_size", "head")
"""What training may start from, instead of from scratch."""
UNTUNED: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "pour-d": {"pour-d-cosine": {"schedule": "cosine"}, "pour-d-default": {}},
}
"""Methods that have rows without tuning as well: what one gets who forgets a class and looks at nothing else, and what
other defaults would give."""
ANCHORED = ("pour-a",)
"""Methods that have a row only where an experiment asks for anchored methods, and that are not tuned."""
CONTROLS = ("masked-head", "random-direction")
RELATIVES = ("esc", "leace", "leace-orth", "ssd", "neggrad-plus", "bad-teacher", "unsir", "duck", "l1-sparse")


def check_row_name(name: str) -> None:
    """Raise UsageError if a row's name cannot be the name of its files."""
    if not _ROW_NAME.fullmatch(name) or name.endswith((".run", ".report")):
        raise UsageError(
            f"A row cannot be called {name!r}, because its files are called so; use letters, digits and _ . + "
            "-, and neither .run nor .report at the end."
        )


@record
@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table: a method with its options, or one of the experiment's own models."""

    name: str
    """Unique in the experiment; also the name of its files, so letters, digits and ``_.+-``."""
    method: str | None
    """A name from :func:`pour.list_methods`; None for a reference."""
    setting: Setting
    family: Family
    options: Mapping[str, Option] = field(default_factory=dict)
    """What differs from the method's defaults."""
    note: str = ""
    """Where the options come from."""
    tuned_on: tuple[int, ...] = ()
    """The classes that tuning forgot when it chose the options."""
    tuned_with: int | None = None
    """The seed of that tuning."""
    label: str = ""
    """Name in tables; by default that of the method."""

    def __post_init__(self) -> None:
        check_row_name(self.name)

    def resolved(self) -> dict[str, Any]:
        """Return all options by name, defaults included, as stored cells contain them."""
        return {} if self.method is None else make_method(self.method, **self.options).stored_options()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A grid of rows times seeds times requests to forget, over models that its cells share.

    Example:
        >>> experiment = get_experiment("digits")
        >>> experiment.dataset, experiment.forget, [row.name for row in experiment.rows][:3]
        ('digits', ((3,),), ['original', 'retrained', 'ceiling'])
    """

    name: str
    dataset: str
    """A name that :func:`pour.load_dataset` knows."""
    architecture: str
    """A name from :func:`pour.list_models`."""
    recipe: Recipe
    """How the original and the retrained models are trained."""
    forget: tuple[tuple[int, ...], ...]
    """The requests: each a tuple of classes that are forgotten together."""
    seeds: tuple[int, ...]
    rows: tuple[Row, ...]
    columns: tuple[str, ...] = (*PAPER_COLUMNS, "probe")
    """What the table shows, see :data:`pour.bench.columns.COLUMNS`."""
    weights: str | None = None
    """What training starts from: a file, or a name of :data:`pour.models.PRETRAINED`."""
    freeze_backbone: bool = False
    """Train only the heads of the original and the retrained models; methods train everything all the same."""
    image_size: int | None = None
    """The size that images are brought to inside a network of another library."""
    head: HeadShape = "free"
    """With a frozen backbone, what the rows of the heads may be."""

    def __post_init__(self) -> None:
        for what, values in (("requests to forget", self.forget), ("seeds", self.seeds), ("rows", self.rows)):
            if not values:
                raise UsageError(f"The experiment {self.name} has no {what}; give at least one.")
        names = [row.name for row in self.rows]
        if len(set(names)) < len(names):
            raise UsageError(f"The experiment {self.name} names a row twice; give each row its own name.")
        unknown = [key for key in self.columns if key not in COLUMNS]
        if unknown:
            raise UsageError(f"There is no column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}.")
        if min(self.seeds) < 0:
            raise UsageError(f"A seed must not be negative, but is {min(self.seeds)}.")
        if self.freeze_backbone and self.weights is None:
            raise UsageError(f"The experiment {self.name} freezes a backbone without weights; give them with weights=.")

    def select(self, methods: Iterable[str] | None) -> tuple[Row, ...]:
        """The rows of some methods, given by method ("delete") or by row ("delete-common"); references always."""
        if methods is None:
            return self.rows
        wanted = set(methods)
        known = {name for row in self.rows for name in (row.name, row.method) if name is not None}
        for name in wanted - known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(sorted(known))}."
            raise UsageError(f"{self.name} has no method {name!r}; {hint}")
        return tuple(row for row in self.rows if row.method is None or {row.name, row.method} & wanted)

    @cached_property
    def start(self) -> dict[str, Any]:
        """What differs from training from scratch on the images as they are; nothing in most experiments."""
        found: dict[str, Any] = {} if self.image_size is None else {"image_size": self.image_size}
        if self.weights is not None:
            # Not the file's name, which another machine need not share.
            found |= {"weights": digest(read_weights(self.weights)), "freeze_backbone": self.freeze_backbone}
        if self.freeze_backbone:
            found["head"] = self.head
        return found


def benchmark_rows(
    dataset: str,
    *,
    only: Sequence[str] | None = None,
    tuning: Path | None = None,
    settings: Sequence[Setting] = ("common", "tuned"),
    architecture: str | None = None,
    anchored: bool = False,
) -> tuple[Row, ...]:
    """The references, then the paper's methods, controls, relatives and whatever else is registered.

    Args:
        dataset: decides the common learning rate and the tuned options.
        only: these methods instead of all.
        tuning: a folder of :func:`pour.bench.tune_experiment`; by default the tuned options that ship with pour.
        settings: which settings of an iterative method have a row.
        architecture: the network; options that were tuned on another one are not taken.
        anchored: add the rows POUR-A and DELETE with anchors, after the rows of the paper's methods.
    """
    if tuning is not None:
        check_tuning(tuning)
    others = _others()
    families: dict[str, Family] = {
        **dict.fromkeys(PAPER, "paper"),
        **dict.fromkeys(CONTROLS, "control"),
        **dict.fromkeys((*RELATIVES, *others), "relative"),
    }
    rows = [Row(name=name, method=None, setting="reference", family="reference") for name in REFERENCES]
    for method, family in families.items():
        if only is None or method in only:
            rows += _rows_of(method, family, dataset, tuning, architecture)
    found = [row for row in rows if row.setting in ("reference", "closed form", *settings)]
    if not anchored:
        return tuple(found)
    place = 1 + max(index for index, row in enumerate(found) if row.family in ("reference", "paper"))
    return (*found[:place], *_anchored_rows(dataset, tuning, architecture), *found[place:])


def _others() -> list[str]:
    """The methods of other packages, which every experiment takes."""
    # The method text-direction needs an encoder of texts.
    ours = {*PAPER, *ANCHORED, *CONTROLS, *RELATIVES, "retrain", "text-direction"}
    return [info.name for info in list_methods() if info.name not in ours]


def _anchored_rows(dataset: str, tuning: Path | None, architecture: str | None) -> list[Row]:
    """Return POUR-A at its defaults and DELETE with its tuned options, both on forget images and copies of them."""
    tuned = tuned_options("delete", dataset, tuning, architecture=architecture)
    return [
        Row(
            name="pour-a",
            method="pour-a",
            setting="default",
            family="paper",
            # By default it also reads retained images if the request has them, as a benchmark's request does.
            options={"anchor": "views"},
            note="the method's defaults, but anchor=views",
        ),
        Row(
            name="delete-anchored",
            method="delete",
            setting="tuned",
            family="paper",
            options={**tuned.options, "anchor": "views"},
            note=f"{tuned.note}; anchor=views",
            tuned_on=tuned.classes,
            tuned_with=tuned.seed,
        ),
    ]


def _rows_of(method: str, family: Family, dataset: str, tuning: Path | None, architecture: str | None) -> list[Row]:
    kind = get_method(method)
    if not issubclass(kind, IterativeMethod):
        variants = CLOSED_FORM_BY_DATASET.get((method, dataset)) or CLOSED_FORM.get(method, (method,))
        return [
            Row(
                name=variant,
                method=method,
                setting="closed form",
                family=family,
                options=closed_form_options(variant, dataset),
            )
            for variant in variants
        ]
    tuned = tuned_options(method, dataset, tuning, architecture=architecture)
    rows = [
        Row(
            name=f"{method}-common",
            method=method,
            setting="common",
            family=family,
            options=common_options(kind, dataset),
            note="the rivals' common code base",
        ),
        Row(
            name=f"{method}-tuned",
            method=method,
            setting="tuned",
            family=family,
            options=tuned.options,
            note=tuned.note,
            tuned_on=tuned.classes,
            tuned_with=tuned.seed,
        ),
    ]
    if tuned.note.startswith(NOT_TUNED):
        # The row before has the defaults.
        return rows
    for name, options in UNTUNED.get(method, {}).items():
        other = "".join(f", but {option}={value}" for option, value in options.items())
        note = f"the method's defaults{other}"
        rows.append(Row(name=name, method=method, setting="default", family=family, options=options, note=note))
    return rows


def _digits(tuning: Path | None) -> Experiment:
    only = ("scrub", "gradient-ascent", "delete", "pour-p", "pour-d", *CONTROLS, *_others())
    return Experiment(
        name="digits",
        dataset="digits",
        architecture="resnet-digits",
        recipe=get_recipe("digits"),
        forget=((3,),),
        seeds=(0, 1),
        rows=benchmark_rows("digits", only=only, tuning=tuning, architecture="resnet-digits", anchored=True),
    )


def _cifar(name: str, forget: tuple[int, ...], recipe: str, arch: str | None, tuning: Path | None) -> Experiment:
    network = arch or "resnet18"
    return Experiment(
        name=name,
        dataset=name,
        architecture=network,
        recipe=get_recipe(recipe),
        forget=tuple((label,) for label in forget),
        seeds=(0, 1, 2),
        rows=benchmark_rows(
            name,
            tuning=tuning,
            settings=("common", "tuned", "default"),
            architecture=network,
            # The published tables are of other networks, and their rows stay as they are.
            anchored=name == "cifar10" and network == SMALL_NETWORK,
        ),
    )


def _pathmnist(tuning: Path | None, weights: str | None, arch: str | None) -> Experiment:
    """The paper's domain shift: a pretrained backbone, a trained head, and test images from another clinic."""
    known = weights if weights in PRETRAINED else PATHMNIST_BACKBONE
    network = arch or PRETRAINED[known].arch
    forget_only = [info.name for info in list_methods() if set(info.needs) <= {"forget"}]
    return Experiment(
        name="pathmnist",
        dataset="pathmnist",
        architecture=network,
        recipe=get_recipe("head"),
        forget=((0,),),
        seeds=(0, 1, 2),
        rows=benchmark_rows(
            "pathmnist",
            only=("finetune", "fcs", *forget_only),
            tuning=tuning,
            settings=("tuned",),
            architecture=network,
        ),
        columns=BOTH_TEST_SETS,
        weights=weights or known,
        freeze_backbone=True,
        image_size=112,
        head="simplex",
    )


SMALL_NETWORK = "resnet-small"
"""The network on which CIFAR-10 also has the anchored rows."""
EXPERIMENTS = ("digits", "cifar10", "cifar100", "pathmnist")
"""``digits`` takes about a minute on a CPU; the others are the paper's tables."""
PATHMNIST_BACKBONE = "dinov2-small"
"""A ViT-S/14, nearest to the paper's ViT-S/16; EfficientNet-Lite0 runs with ``arch`` and ``weights``."""


def get_experiment(
    name: str,
    *,
    tuning: Path | None = None,
    weights: str | None = None,
    arch: str | None = None,
    recipe: str | None = None,
) -> Experiment:
    """The experiment of that name, with every method that is registered now.

    Args:
        name: digits, cifar10, cifar100 or pathmnist.
        tuning: folder of :func:`pour.bench.tune_experiment` whose options the tuned rows take; by default the options
            that ship with pour. A method that was not tuned keeps its defaults, and its row says so.
        weights: for pathmnist, the backbone's weights: a file, or a name of :data:`pour.models.PRETRAINED`.
        arch: for cifar10 and cifar100, another network than the paper's ResNet-18. For pathmnist, the backbone; by
            default that of the weights, or the ViT-S/14 for a file.
        recipe: for cifar10 and cifar100, how the models are trained.
    """
    if weights is not None and name != "pathmnist":
        raise UsageError(f"{name} is trained from scratch; weights are for pathmnist.")
    if arch is not None and name == "digits":
        raise UsageError("digits has one network; arch is for cifar10, cifar100 and pathmnist.")
    if recipe is not None and name not in ("cifar10", "cifar100"):
        raise UsageError(f"{name} has one recipe; another one is for cifar10 and cifar100.")
    if name == "digits":
        return _digits(tuning)
    if name == "cifar10":
        return _cifar(name, (0, 1, 5), recipe or "fast", arch, tuning)
    if name == "cifar100":
        return _cifar(name, (0, 20, 60), recipe or "long", arch, tuning)
    if name == "pathmnist":
        return _pathmnist(tuning, weights, arch)
    raise UsageError(f"There is no experiment {name!r}; the experiments are {', '.join(EXPERIMENTS)}.")


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds as the command line gives them: how many, or which ones with commas between or after them.

    Example:
        >>> parse_seeds("3"), parse_seeds("1,2"), parse_seeds("7,")
        ((0, 1, 2), (1, 2), (7,))
    """
    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise UsageError(f"Seeds are a number of them (3) or a list (1,2), but are {text!r}.") from error
    if not numbers or min(numbers) < 0 or ("," not in text and numbers[0] < 1):
        raise UsageError(f"Seeds are a number of them (3) or a list (1,2), but are {text!r}.")
    if max(numbers) >= (_LARGEST_SEED if "," in text else _MOST_SEEDS):
        raise UsageError(f"{text} asks for too much: at most {_MOST_SEEDS} seeds, each below 2^62.")
    return tuple(dict.fromkeys(numbers)) if "," in text else tuple(range(numbers[0]))
