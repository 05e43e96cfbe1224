"""Print, compare, save and load the result of an audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pour._io import refuse_to_overwrite, write_text
from pour._records import decode, encode, read, record
from pour._version import __version__
from pour.auditing.distance import Discrepancy
from pour.auditing.layers import LayerMap
from pour.auditing.measurement import Reading
from pour.auditing.pictures import Pictures
from pour.auditing.relearning import RelearningCurve
from pour.auditing.summary import summarise
from pour.auditing.verdict import Verdict
from pour.errors import UsageError
from pour.metrics.catalogue import metric_of
from pour.models.history import HistoryEntry

if TYPE_CHECKING:
    import os
    from typing import Self

    from rich.console import RenderableType

    from pour.auditing.features import Seen

__all__ = ["AuditReport", "AuditedData", "AuditedModel", "Comparison", "Difference", "Line"]

Section = Literal["scores", "features", "raw"]
"""Measured values: the scores, the features before the head, or the encoder's features before a projector."""


@record()
class Line:
    """One metric of the unlearned model, the original and a retrained model."""

    name: str
    """Name of the metric, such as `acc_r`; the suffix `_train` means training images instead of test images."""
    section: Section
    unlearned: Reading
    original: Reading | None = None
    """Value of the original model, before forgetting."""
    retrained: Reading | None = None
    """Value of the retrained model. A comparison with the retrained model has the value of a second retrained model.

    The interval of two retrained models covers the intervals of both.
    """
    verdict: Verdict = "no reference"

    def __post_init__(self) -> None:
        metric_of(self.name)


@record()
class AuditedModel:
    """One of the models of an audit."""

    digest: str
    """SHA-256 of the state dict."""
    architecture: str | None
    """Name of the architecture, if the model's card contains it."""
    methods: tuple[str, ...]
    """Methods in the model's history, oldest first."""
    projected: bool
    """Whether the model has a projector before its head."""
    history: tuple[HistoryEntry, ...] = ()
    """The model's history, oldest first."""

    @property
    def seconds(self) -> float:
        """Time of all steps of the history; 0 if no step recorded its time."""
        return sum(entry.seconds for entry in self.history)


@record()
class AuditedData:
    """Data of an audit."""

    name: str
    classes: tuple[str, ...]
    """Names of all classes."""
    forgotten: tuple[int, ...]
    """Indices of the forgotten classes."""
    counts: Mapping[str, tuple[int, int]]
    """Number of samples with a forgotten class and of the others, by split."""
    unit: str = "image"
    """Place of a label: `image` or `pixel`."""

    def __post_init__(self) -> None:
        unknown = [label for label in self.forgotten if not 0 <= label < len(self.classes)]
        if unknown:
            raise UsageError(f"There is no class {unknown[0]} to forget; the data have {len(self.classes)} classes.")

    @property
    def forgotten_names(self) -> tuple[str, ...]:
        """Names of the forgotten classes."""
        return tuple(self.classes[label] for label in self.forgotten)


@record(version="schema_version", derived=("summary",), complete=True)
class AuditReport:
    """Result of `pour.audit`.

    `print(report)` prints tables and the three statements of `summary`. `report.value("rus_r")` returns the
    value of a metric.
    """

    data: AuditedData
    models: Mapping[str, AuditedModel]
    """Audited models by role: original, unlearned, retrained, retrained_second."""
    settings: Mapping[str, str | int | float | None]
    """Seed, limit, precision, device and alignment."""
    lines: tuple[Line, ...]
    discrepancies: tuple[Discrepancy, ...] = ()
    """Distance to the retrained model with its terms, floor and decision (Definition 2.1)."""
    collapse: Mapping[str, Mapping[str, int | float]] = field(default_factory=dict)
    """All Neural Collapse measures of the retained classes' training images, by role."""
    answers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Number of times that each class is the answer on test images of the forgotten classes, by role."""
    layers: tuple[LayerMap, ...] = ()
    relearning: tuple[RelearningCurve, ...] = ()
    notes: tuple[str, ...] = ()
    """Reasons for absent measures."""
    pictures: Pictures | None = None
    """Data of the pictures of the page; None without `pictures=True`."""
    pour_version: str = __version__
    schema_version: int = 1

    def __post_init__(self) -> None:
        if "unlearned" not in self.models:
            raise UsageError("The report has no unlearned model.")
        if any(len(counts) < len(self.data.classes) for counts in self.answers.values()):
            raise UsageError("The report counts answers for fewer classes than the data have.")

    @property
    def pixelwise(self) -> bool:
        """Whether labels belong to pixels."""
        return self.data.unit == "pixel"

    @property
    def seen(self) -> Mapping[str, Seen]:
        """Features and scores of every model on the test samples, by role. Empty for a report from a file."""
        outputs: Mapping[str, Seen] = self.__dict__.get("_seen", {})
        return outputs

    def keep(self, seen: Mapping[str, Seen]) -> Self:
        """Store features and scores for pictures in the object, but not in its file. Return the report."""
        object.__setattr__(self, "_seen", dict(seen))
        return self

    @property
    def summary(self) -> tuple[str, str, str]:
        """Three statements about the answers, the features and the retained classes, computed from the lines."""
        return summarise(self)

    def line(self, name: str, section: Section | None = None) -> Line:
        """Return the line of a metric, by default from the scores or the features before the head.

        Raises:
            UsageError: The report has no such line.
        """
        sections = [section] if section is not None else ["scores", "features"]
        lines = {line.name: line for line in reversed(self.lines) if line.section in sections}
        if name not in lines:
            names = ", ".join(sorted(lines))
            raise UsageError(f"The report has no {name!r} in {' or '.join(sections)}; it has {names}.")
        return lines[name]

    def value(self, name: str, section: Section | None = None) -> float:
        """Return the unlearned model's value of a metric. Raise UsageError if the report has no such metric."""
        return self.line(name, section).unlearned.value

    def values(self) -> dict[str, float]:
        """Return the unlearned model's value of every metric by name. Names for raw features start with `raw.`."""
        return {_key(line): line.unlearned.value for line in self.lines}

    def compare(self, other: AuditReport) -> Comparison:
        """Return the differences of the metrics in another report from this report."""
        first = {_key(line): line for line in self.lines}
        second = {_key(line): line for line in other.lines}
        pairs = {key: (line, second[key]) for key, line in first.items() if key in second}
        return Comparison(
            rows=tuple(
                Difference(name=key, first=a.unlearned, second=b.unlearned, verdicts=(a.verdict, b.verdict))
                for key, (a, b) in pairs.items()
            ),
            only_first=tuple(key for key in first if key not in second),
            only_second=tuple(key for key in second if key not in first),
            same_data=self.data == other.data,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and the summary as dictionaries, tuples and plain values."""
        return {**asdict(self), "summary": self.summary}

    def to_json(self) -> str:
        """Return the report and its summary as JSON."""
        return encode(self, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes, source: str | os.PathLike[str] = "The report") -> AuditReport:
        """Return the report in the JSON of `to_json`. The summary is computed again.

        Raises:
            UsageError: The text is no complete report. The message names `source` and the key.
        """
        return decode(cls, text, source)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
        """Write the report as JSON, with its pictures. If writing fails, an existing file does not change.

        Args:
            path: File of the report.
            overwrite: Replace an existing file. If False, raise UsageError for an existing file.
        """
        refuse_to_overwrite(Path(path), overwrite=overwrite)
        write_text(path, self.to_json() + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditReport:
        """Return the report in a file that `save` wrote. Raise UsageError for another file."""
        return read(cls, path)

    def __rich__(self) -> RenderableType:
        from pour.auditing.terminal import report_tables

        return report_tables(self)

    def __str__(self) -> str:
        from pour._terminal import as_text

        return as_text(self.__rich__())


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric in two reports."""

    name: str
    first: Reading
    second: Reading
    verdicts: tuple[Verdict, Verdict]

    @property
    def change(self) -> float:
        """The second value minus the first."""
        return self.second.value - self.first.value

    @property
    def clear(self) -> bool:
        """Whether each value is outside the other's interval."""
        return not self.first.covers(self.second.value) and not self.second.covers(self.first.value)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Differences of two reports. `print` shows a table."""

    rows: tuple[Difference, ...]
    only_first: tuple[str, ...] = ()
    """Metrics that the second report does not have."""
    only_second: tuple[str, ...] = ()
    """Metrics that the first report does not have."""
    same_data: bool = True
    """Whether both reports have the same classes and the same numbers of images."""

    def __rich__(self) -> RenderableType:
        from pour.auditing.terminal import comparison_table

        return comparison_table(self)

    def __str__(self) -> str:
        from pour._terminal import as_text

        return as_text(self.__rich__())


def _key(line: Line) -> str:
    return f"raw.{line.name}" if line.section == "raw" else line.name
