"""Columns and labels of a result table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from pour._records import record
from pour.errors import UsageError
from pour.metrics.catalogue import find_metric

__all__ = ["Column", "TableLayout", "find_column", "latex_text"]

_ALIASES = {"rmia": "rmia_tpr", "probe": "probe_linear"}
"""Names of the paper for two metrics."""
_SUFFIXES = {
    "": ("", ""),
    "_train": (", train", ", train"),
    "_external": (", external", ", ext."),
    "_before": (" before", " before"),
}
"""Words for the images or the model, in text and in LaTeX."""
_LATEX_SPECIAL = str.maketrans(
    {char: f"\\{char}" for char in "_%&#${}"}
    | {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}
)


@record()
class TableLayout:
    """Arrangement of an experiment's table."""

    rows: Literal["methods", "classes", "concepts"] = "methods"
    """Methods on one request; one block per request; or means over requests, then each request."""
    title: str = ""
    """Words after dataset and network."""
    heads: tuple[str, str] = ("method", "setting")
    """Titles of the first two columns."""
    notes: tuple[str, ...] = ()
    """Sentences below the table."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric of a table."""

    key: str
    """Name in tables and on the command line."""
    line: str
    """Name in an audit."""
    label: str
    latex: str
    percent: bool = False
    """Whether values are shown times 100."""
    better: Literal["higher", "lower", "as retrained"] = "higher"
    change: bool = False
    """Whether the difference from the original model is shown."""

    @property
    def scale(self) -> float:
        """Factor between the audit's value and the shown one."""
        return 100.0 if self.percent else 1.0

    def of_classes(self, names: str) -> Column:
        """Return the column of one request in a table of several requests."""
        key, label, latex = f"{self.key}.{names}", f"{self.label}, {names}", f"{self.latex}, {latex_text(names)}"
        return replace(self, key=key, label=label, latex=latex)


def find_column(key: str) -> Column:
    """Return the column of a metric, described by the catalogue of metrics.

    Args:
        key: Name of a metric. The endings `_train` and `_external` name the images, `_before` the original model,
            and `_change` the difference from the original model. `raw.` in front means the features before a
            projector.

    Raises:
        UsageError: The catalogue has no such metric.

    Examples:
        >>> find_column("acc_r_change").label, find_column("cka_f_o_external").latex
        ('change of Acc_r', 'CKA$_f^{(o)}$, ext.')
    """
    line = key.replace("_change", "", 1)
    line = _ALIASES.get(line, line)
    match = find_metric(line)
    suffix = "" if match is None else match[1]
    if match is None or (suffix not in _SUFFIXES and not match[0].name.startswith("class_")):
        raise UsageError(
            f"There is no column {key!r}; use a name of pour metrics, also with _train, _external, _before or _change "
            "at its end."
        )
    metric, change = match[0], "_change" in key
    words, latex_words = _SUFFIXES.get(suffix, (f", {suffix[1:]}",) * 2)
    encoder = ", encoder" if line.startswith("raw.") else ""
    delta = r"$\Delta$" if change else ""
    return Column(
        key=key,
        line=line,
        label=f"{'change of ' * change}{metric.label}{words}{encoder}",
        latex=f"{delta}{metric.latex}{latex_words}{encoder}",
        percent=metric.percent,
        # For the original, a high value means that there is something to forget.
        better="higher" if suffix == "_before" else metric.better,
        change=change,
    )


def latex_text(text: str) -> str:
    r"""Return a text as LaTeX prints it.

    Examples:
        >>> print(latex_text("50 % of a_b~{c}"))
        50 \% of a\_b\textasciitilde{}\{c\}
    """
    return " ".join(text.translate(_LATEX_SPECIAL).split())
