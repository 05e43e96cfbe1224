"""Describe every metric once: the audit, the page, the tables, the docs and `pour metrics` read this catalogue."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Literal, TypeAlias

from pour._plug_ins import load_plug_ins
from pour.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

__all__ = [
    "Better",
    "Compute",
    "Meaning",
    "Metric",
    "find_metric",
    "list_metrics",
    "metric_of",
    "metrics_among",
    "register_metric",
    "title_of",
]

_NAME = re.compile(r"[a-z][a-z0-9_]*")
Better = Literal["higher", "lower", "as retrained"]
"""Direction of improvement if there is no retrained model to compare with."""
Meaning = Literal["leak", "destroyed", "loss", "better", "towards original", "depends"]
"""Meaning of a value outside the retrained model's interval.

- `leak`: more of the forgotten class remains than in a model that never saw it.
- `destroyed`: less structure remains than in such a model.
- `loss`: the same as `destroyed`, unless the original model was no better.
- `better`: the value differs in the harmless direction.
- `towards original`: a leak if the original model's value is outside on the same side, otherwise `destroyed`.
- `depends`: the verdicts on other metrics decide, see `pour.auditing.verdict`.
"""

Compute: TypeAlias = "Callable[[Tensor, Tensor, Tensor, tuple[int, ...]], float]"
"""Function from the features (n, d), class scores (n, C) and labels (n,) of test samples and the forgotten classes."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """Description of one metric.

    Examples:
        >>> metric_of("cka_f_o").title
        'CKA_f(o), forgotten, with the original'
    """

    name: str
    title: str
    """Name in the tables of a report."""
    family: str
    """Group of metrics that a report shows together: accuracy, similarity, membership, ..."""
    meaning: str
    """One sentence for a reader who does not know the metric."""
    formula: str
    """Formula in the notation of `pour.report.page.mathml.mathml`."""
    better: Better
    above: Meaning | None = None
    """Meaning of a value above the retrained model's interval; None for a metric without a verdict."""
    below: Meaning | None = None
    """Meaning of a value below the retrained model's interval; None for a metric without a verdict."""
    chance: float | None = None
    """Value of an attack that learned nothing. A value between it and the retrained model's value is no leak."""
    percent: bool = False
    """Whether tables show the value times 100."""
    glance: bool = False
    """Whether the first table of a page has the metric."""
    training: bool = False
    """Whether the metric is measured on training images. The names of other metrics then have the suffix `_train`."""
    label: str = ""
    """Column header in a table; by default the title."""
    latex: str = ""
    """Column header in a LaTeX table; by default the label."""
    compute: Compute | None = None
    """Function that an audit calls for each model, for a metric of another package; None for the metrics of pour."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.title)
        object.__setattr__(self, "latex", self.latex or self.label)


@cache
def _catalogue() -> dict[str, Metric]:
    text = (files("pour.metrics") / "catalogue.toml").read_text(encoding="utf-8")
    return {name: Metric(name=name, **entry) for name, entry in tomllib.loads(text).items()}


def register_metric(metric: Metric) -> Metric:
    """Add a metric to the catalogue. Raise UsageError if another metric has its name."""
    if not isinstance(metric, Metric):
        raise UsageError(f"A metric is a pour.metrics.Metric, not {metric!r}.")
    if not _NAME.fullmatch(metric.name):
        raise UsageError(f"A metric cannot be called {metric.name!r}; use lower-case letters, digits and _.")
    if _catalogue().setdefault(metric.name, metric) != metric:
        raise UsageError(f"There is already a metric {metric.name!r}; choose another name.")
    return metric


def _all_metrics() -> dict[str, Metric]:
    load_plug_ins("metric", register_metric)
    return _catalogue()


def list_metrics() -> list[Metric]:
    """Return all metrics in the order of a report.

    Examples:
        >>> [metric.name for metric in list_metrics()][:2]
        ['acc_r', 'acc_f']
    """
    return list(_all_metrics().values())


def find_metric(name: str) -> tuple[Metric, str] | None:
    """Return the metric of a measured value and the suffix of its name, or None if the catalogue has no such metric.

    Args:
        name: Name of a metric, with a suffix for the images (`_train`, `_external`) or the class, and with the
            prefix `raw.` for raw features.

    Examples:
        >>> metric, suffix = find_metric("raw.cka_f_o_train")
        >>> metric.name, suffix
        ('cka_f_o', '_train')
    """
    whole = name.removeprefix("raw.")
    metrics = _catalogue() if whole in _catalogue() else _all_metrics()
    base = whole
    while base and base not in metrics:
        base = base.rpartition("_")[0]
    return (metrics[base], whole[len(base) :]) if base else None


def metric_of(name: str) -> Metric:
    """Return the metric of a measured value, see `find_metric`. Raise UsageError for an unknown metric."""
    match = find_metric(name)
    if match is None:
        raise UsageError(f"There is no metric called {name!r}; pour metrics lists all of them.")
    return match[0]


def title_of(name: str) -> str:
    """Return the title of a measured value with its images, or the name itself for an unknown metric.

    Examples:
        >>> title_of("acc_f"), title_of("raw.nc1_train"), title_of("beauty")
        ('Acc_f, forgotten', 'NC1, within / between, train, raw', 'beauty')
    """
    match = find_metric(name)
    if match is None:
        return name
    metric, suffix = match
    parts = [metric.title, suffix.removeprefix("_"), "raw" if name.startswith("raw.") else ""]
    return ", ".join(part for part in parts if part)


def metrics_among(names: Iterable[str]) -> list[Metric]:
    """Return the metrics of measured values, each once, in the order of the catalogue."""
    present = {match[0].name for name in names if (match := find_metric(name)) is not None}
    return [metric for metric in list_metrics() if metric.name in present]
