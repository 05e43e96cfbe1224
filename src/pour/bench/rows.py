"""The rows of a table: methods with their options. `rows.toml` contains groups and the options of datasets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour._records import Option, read, record
from pour.bench.selection import Rule, TuningResult
from pour.errors import UsageError
from pour.unlearning.iterative import IterativeMethod
from pour.unlearning.registry import get_method, list_methods
from pour.unlearning.unlearn import make_method

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = [
    "REFERENCES",
    "Family",
    "Row",
    "Setting",
    "Shipped",
    "ShippedOptions",
    "Variant",
    "check_row_name",
    "check_tuning",
    "chosen_options",
    "common_options",
    "expand_rows",
    "label_of",
    "methods_of",
    "read_options",
    "starting_options",
    "tuned_row",
    "tuned_row_options",
]

Variant = Literal["common", "tuned", "default"]
"""Rows of an iterative method: options of the rivals' common code base, tuned options, or the method's defaults."""
Setting = Literal["reference", "closed form", "common", "tuned", "default"]
"""Origin of a row's options. References have none, and methods in closed form have nothing to tune."""
Family = Literal["reference", "paper", "control", "relative"]
"""Reason for a row in the table."""
REFERENCES = ("original", "retrained", "ceiling")
"""Rows that are trained models: the original, a retrained model, and a retrained model of the next seed."""
OTHERS = "others"
"""Group of the methods that other packages register."""
TUNED = Path(__file__).with_name("tuned.json")
"""File of the tuned options that ship with pour. `scripts/ship_tuning.py` writes it."""

Options = dict[str, Option]
# Rows also name files.
_ROW_NAME = re.compile(r"[\w.+-]+")
_FAMILIES: dict[str, Family] = {"paper": "paper", "controls": "control", "relatives": "relative", OTHERS: "relative"}


def check_row_name(name: str) -> None:
    """Raise UsageError if a row's name cannot be the name of its files."""
    if not _ROW_NAME.fullmatch(name) or name.endswith((".run", ".report")):
        raise UsageError(
            f"A row cannot be called {name!r}, because its files have this name; use letters, digits and _ . + -, and "
            "neither .run nor .report at the end."
        )


@record()
class Row:
    """One line of the table: a method with its options, or a trained model.

    Examples:
        >>> Row(name="pour-p", method="pour-p", options={"forgotten_logit": "keep"}).setting
        'closed form'
    """

    name: str
    """Unique name in the experiment, and the name of the row's files: letters, digits and `_.+-`."""
    method: str | None = None
    """A name from `pour.list_methods`; None for a reference."""
    setting: Setting = "closed form"
    family: Family = "relative"
    options: Mapping[str, Option] = field(default_factory=dict)
    """Options that differ from the method's defaults."""
    note: str = ""
    """Origin of the options."""
    untuned: bool = False
    """Whether the row is for tuned options, but its method was not tuned."""
    tuned_on: tuple[int, ...] = ()
    """Classes that tuning forgot when it chose the options."""
    tuned_with: int | None = None
    """Seed of that tuning."""
    label: str = ""
    """Name in tables; by default the name of the method."""

    def __post_init__(self) -> None:
        check_row_name(self.name)
        if self.method is None and self.name not in REFERENCES:
            raise UsageError(f"The row {self.name!r} has no method; only {', '.join(REFERENCES)} have none.")

    def resolved(self) -> dict[str, Any]:
        """Return all options by name, including defaults, as stored cells contain them."""
        return {} if self.method is None else make_method(self.method, **self.options).stored_options()


@record()
class _OfDataset:
    """Options of rows that one dataset changes."""

    common_rate: float = 1e-4
    common_of: Mapping[str, Options] = field(default_factory=dict)
    """Changed options of the variant `common`, by method."""
    start_rate: float | None = None
    """Learning rate that tuning starts from, for all iterative methods."""
    start_all: Options = field(default_factory=dict)
    """Options that tuning starts from, for all iterative methods."""
    start: Mapping[str, Options] = field(default_factory=dict)
    """Options that tuning starts from, by method."""
    closed_form: Mapping[str, Mapping[str, Options]] = field(default_factory=dict)
    """Options by method without optimisation and row."""


@record()
class _RowData:
    """Content of `rows.toml`."""

    groups: Mapping[str, tuple[str, ...]]
    """Methods by group."""
    common: Options
    """Options of the variant `common`."""
    common_of: Mapping[str, Options]
    """Changed options of the variant `common`, by method."""
    closed_form: Mapping[str, Mapping[str, Options]]
    """Options by method without optimisation and row."""
    default: Mapping[str, Mapping[str, Options]]
    """Options of the variant `default`, by method and row."""
    datasets: Mapping[str, _OfDataset]
    labels: Mapping[str, str]
    """Names of rows and methods in tables."""

    def of(self, dataset: str) -> _OfDataset:
        return self.datasets.get(dataset, _OfDataset())


@cache
def _data() -> _RowData:
    return read(_RowData, Path(__file__).with_name("rows.toml"))


def label_of(row: str, method: str | None) -> str:
    """Return the name of a row in tables.

    Examples:
        >>> label_of("delete-common", "delete"), label_of("mine", "mine")
        ('DELETE', 'mine')
    """
    labels = _data().labels
    return labels.get(row) or labels.get(method or "") or method or row


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a TOML file; the string "null" stands for None, which TOML does not have."""
    return {name: None if value == "null" else value for name, value in options.items()}


def expand_rows(
    names: Iterable[str | Row],
    dataset: str,
    *,
    variants: Iterable[Variant] = ("common", "tuned"),
    tuning: Path | None = None,
    architecture: str | None = None,
) -> tuple[Row, ...]:
    """Return the rows of groups, methods and references.

    Args:
        names: Names of references, of methods, or of the groups `references`, `paper`, `anchored`, `controls`,
            `relatives` and `others`, the methods of other packages. Rows stay as they are.
        dataset: Dataset that decides the common learning rate and the tuned options.
        variants: Variants of an iterative method that have a row.
        tuning: Folder of `pour.bench.tune_experiment`; by default the tuned options that ship with pour.
        architecture: Network of the experiment. Options that were tuned on another network are ignored.

    Examples:
        >>> [row.name for row in expand_rows(["original", "delete", "controls"], "digits")]
        ['original', 'delete-common', 'delete-tuned', 'masked-head', 'random-direction']
    """
    if tuning is not None:
        check_tuning(tuning)
    tuned = partial(tuned_row, dataset=dataset, folder=tuning, architecture=architecture)
    rows: list[Row] = []
    for name in names:
        if isinstance(name, Row):
            rows.append(name)
        elif name == "anchored":
            rows += _anchored_rows(tuned("delete"))
        elif name == "references" or name in REFERENCES:
            models = REFERENCES if name == "references" else (name,)
            rows += [Row(name=model, setting="reference", family="reference") for model in models]
        else:
            for method in methods_of(name):
                rows += [row for row in _rows_of(method, dataset, tuned) if row.setting in ("closed form", *variants)]
    return tuple(rows)


def methods_of(name: str) -> tuple[str, ...]:
    """Return the methods of a group, or the method with that name."""
    groups = _data().groups
    if name == OTHERS:
        # Scenes and texts have methods of their own, which most experiments do not use.
        built_in = {*chain.from_iterable(groups.values()), "pour-a", "retrain", "text-direction"}
        return tuple(info.name for info in list_methods() if info.name not in built_in)
    return groups.get(name) or (get_method(name).name,)


def _family(method: str) -> Family:
    groups = (group for group, members in _data().groups.items() if method in members)
    return _FAMILIES[next(groups, OTHERS)]


def _rows_of(method: str, dataset: str, tuned: Callable[[str], Row]) -> list[Row]:
    """Return the rows of one method: all its variants, or its rows in closed form."""
    kind, family, data = get_method(method), _family(method), _data()
    if not issubclass(kind, IterativeMethod):
        rows = data.of(dataset).closed_form.get(method) or data.closed_form.get(method) or {method: {}}
        return [Row(name=name, method=method, family=family, options=options) for name, options in rows.items()]
    common, tuned_one = common_options(kind, dataset), tuned(method)
    note = "the rivals' common code base"
    rows_of_method = [
        Row(name=f"{method}-common", method=method, setting="common", family=family, options=common, note=note),
        tuned_one,
    ]
    # A tuned row without tuned options already has the defaults.
    for name, options in {} if tuned_one.untuned else data.default.get(method, {}).items():
        note = _defaults_but(options)
        row = Row(name=name, method=method, setting="default", family=family, options=options, note=note)
        rows_of_method.append(row)
    return rows_of_method


def _anchored_rows(delete: Row) -> list[Row]:
    """Return POUR-A at its defaults and DELETE with its tuned options, both on forget images and copies of them."""
    # By default POUR-A also reads retained images if the request has them, as a benchmark's request does.
    views = {"anchor": "views"}
    note = _defaults_but(views)
    return [
        Row(name="pour-a", method="pour-a", setting="default", family="paper", options=views, note=note),
        replace(
            delete, name="delete-anchored", options={**delete.options, **views}, note=f"{delete.note}; anchor=views"
        ),
    ]


def _defaults_but(changes: Mapping[str, Any]) -> str:
    """Return the note of a row with a method's defaults and these changes."""
    changed = ", ".join(f"{name}={value}" for name, value in changes.items())
    return f"the method's defaults, but {changed}" if changed else "the method's defaults"


def common_options(method: type[IterativeMethod], dataset: str) -> dict[str, Any]:
    """Return the options of the rivals' common code base: one learning rate, 20 epochs, batches of 128.

    Examples:
        >>> common_options(get_method("delete"), "cifar100")["lr"]
        5e-05
    """
    data, special = _data(), _data().of(dataset)
    changes = {**data.common_of.get(method.name, {}), **special.common_of.get(method.name, {})}
    return {**dict.fromkeys(method.rate_options, special.common_rate), **data.common, **read_options(changes)}


@record()
class ShippedOptions:
    """Options that tuning chose for a method, and the origin of the choice."""

    options: dict[str, Option]
    rule: Rule
    seed: int
    note: str = ""
    """Reason for the choice."""
    dataset: str | None = None
    architecture: str | None = None
    forgotten: tuple[int, ...] = ()
    """Classes that the trials forgot."""


Shipped = dict[str, dict[str, ShippedOptions]]
"""Content of `tuned.json`, by dataset and method."""


def tuned_row(method: str, dataset: str, folder: Path | None = None, *, architecture: str | None = None) -> Row:
    """Return the row with the options that tuning chose for a method, or with its defaults and BatchNorm frozen.

    Args:
        method: An iterative method.
        dataset: Name of the dataset of the tuning.
        folder: Folder of `pour.bench.tune_experiment`; by default the options that ship with pour.
        architecture: Network of the experiment. Shipped options for another network are ignored.

    Raises:
        UsageError: The folder contains a tuning on another network or dataset.
    """
    shipped = read(Shipped, TUNED) if folder is None and TUNED.is_file() else {}
    choice = shipped.get(dataset, {}).get(method) if folder is None else chosen_options(folder, method)
    subjects = () if choice is None else ((choice.dataset, dataset), (choice.architecture, architecture))
    other = next((pair for pair in subjects if None not in pair and pair[0] != pair[1]), None)
    if other is not None and folder is not None:
        raise UsageError(f"{folder} was tuned for {method} on {other[0]}, not on {other[1]}; run pour tune for it.")
    row = Row(name=f"{method}-tuned", method=method, setting="tuned", family=_family(method))
    if choice is None or other is not None:
        defaults, options = make_method(method).options(), tuned_row_options(method, dataset, {})
        changes = {name: value for name, value in options.items() if defaults.get(name) != value}
        return replace(row, options=options, note=f"not tuned: {_defaults_but(changes)}", untuned=True)
    return replace(
        row,
        options=tuned_row_options(method, dataset, choice.options),
        note=f"tuned by the rule {choice.rule!r} with seed {choice.seed}",
        tuned_on=choice.forgotten,
        tuned_with=choice.seed,
    )


def check_tuning(folder: Path) -> None:
    """Raise UsageError if a folder contains no tuning by the rule `benchmark`."""
    if any(folder.glob("*-benchmark/result.json")):
        return
    others = sorted(path.parent.name for path in folder.glob("*-user/result.json"))
    hint = f" ({others[0]} was chosen by the rule user)" if others else ""
    raise UsageError(
        f"{folder} has no finished tuning by the rule benchmark{hint}; run pour tune --out {folder} first."
    )


def starting_options(method: str, dataset: str) -> dict[str, Any]:
    """Return the options that tuning starts from instead of a method's own defaults.

    Examples:
        >>> starting_options("delete", "pathmnist"), starting_options("delete", "cifar10")
        ({'lr': 3e-06, 'optimizer': 'adamw', 'weight_decay': 0.0}, {})
    """
    kind, special = get_method(method), _data().of(dataset)
    options: dict[str, Any] = {}
    if issubclass(kind, IterativeMethod):
        rates = {} if special.start_rate is None else dict.fromkeys(kind.rate_options, special.start_rate)
        options = {**rates, **special.start_all}
    return {**options, **special.start.get(method, {})}


def tuned_row_options(method: str, dataset: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a tuned row: the options that tuning starts from, with the options that it chose."""
    return {"batch_norm": "frozen", **starting_options(method, dataset), **options}


def chosen_options(folder: Path, method: str) -> ShippedOptions | None:
    """Return the choice of a finished tuning, or None if the folder has none for this method."""
    path = folder / f"{method}-benchmark" / "result.json"
    if not path.is_file():
        return None
    result = read(TuningResult, path)
    if result.best is None:
        return None
    return ShippedOptions(**{field.name: getattr(result, field.name) for field in fields(ShippedOptions)})
