"""The outcome of an audit: typed, printable, comparable, and the same after a trip through a file."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pour._io import write_text
from pour._version import __version__
from pour.auditing.distance import Discrepancy
from pour.auditing.layers import LayerMap
from pour.auditing.measurement import Reading
from pour.auditing.relearning import RelearningCurve
from pour.auditing.summary import summarise
from pour.auditing.terminal import as_text, comparison_table, report_tables
from pour.auditing.verdict import Verdict
from pour.errors import PourError, UsageError
from pour.metrics.catalogue import metric_of

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from rich.console import RenderableType

__all__ = ["SCHEMA_VERSION", "AuditReport", "AuditedData", "AuditedModel", "Comparison", "Difference", "Line"]

SCHEMA_VERSION = 1
Section = Literal["scores", "features", "raw"]
"""What a line was measured on: the scores, the features that the head sees, or the encoder's before a projector."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """One metric of the unlearned model beside the same metric of the original and of a retrained model."""

    name: str
    """For instance ``acc_r``, ``cka_f_o`` on test images; the suffix ``_train`` means training images."""
    section: Section
    unlearned: Reading
    original: Reading | None = None
    """The metric of the original model, before forgetting."""
    retrained: Reading | None = None
    """The metric of the retrained model; for a comparison with the retrained model, that of a second retrained one.

    With two retrained models the interval holds both of theirs.
    """
    verdict: Verdict = "no reference"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Line:
        """Read what ``dataclasses.asdict`` wrote."""
        readings = {
            role: None if data[role] is None else Reading(**data[role])
            for role in ("unlearned", "original", "retrained")
        }
        metric_of(data["name"])
        if data["verdict"] not in get_args(Verdict) or readings["unlearned"] is None:
            raise ValueError(data["verdict"])
        return cls(name=data["name"], section=data["section"], verdict=data["verdict"], **readings)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class AuditedModel:
    """Which model took part."""

    digest: str
    """SHA-256 of the state dict."""
    architecture: str | None
    """Its name, where the model knows it."""
    methods: tuple[str, ...]
    """What was done to it, oldest first."""
    projected: bool
    """Whether a projector stands before its head."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditedModel:
        """Read what ``dataclasses.asdict`` wrote."""
        return cls(**{**data, "methods": tuple(data["methods"])})


@dataclass(frozen=True, kw_only=True)
class AuditedData:
    """What the models were audited on."""

    name: str
    classes: tuple[str, ...]
    """Names of all classes."""
    forgotten: tuple[int, ...]
    """Indices of the forgotten ones."""
    counts: Mapping[str, tuple[int, int]]
    """Images of the forgotten and of the retained classes, by split."""

    @property
    def forgotten_names(self) -> tuple[str, ...]:
        """Names of the forgotten classes."""
        return tuple(self.classes[label] for label in self.forgotten)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditedData:
        """Read what ``dataclasses.asdict`` wrote."""
        return cls(
            name=data["name"],
            classes=tuple(data["classes"]),
            forgotten=tuple(data["forgotten"]),
            counts={split: (counts[0], counts[1]) for split, counts in data["counts"].items()},
        )


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """Everything that :func:`pour.audit` found.

    ``print(report)`` shows it as tables and ends with the three statements of :attr:`summary`. Values are read by
    name: ``report.value("rus_r")``.
    """

    data: AuditedData
    models: Mapping[str, AuditedModel]
    """By role: original, unlearned, retrained, retrained_second."""
    settings: Mapping[str, str | int | float | None]
    """Seed, limit, precision, device and alignment."""
    lines: tuple[Line, ...]
    discrepancies: tuple[Discrepancy, ...] = ()
    """Distance to the retrained model with its terms, floor and decision (Definition 2.1)."""
    collapse: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """All Neural Collapse measures of the retained classes' training images, by role."""
    answers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """How often each class is the answer on the forgotten classes' test images, by role."""
    layers: tuple[LayerMap, ...] = ()
    relearning: tuple[RelearningCurve, ...] = ()
    notes: tuple[str, ...] = ()
    """Why a measure is absent."""
    pour_version: str = __version__
    schema_version: int = SCHEMA_VERSION

    @property
    def pixelwise(self) -> bool:
        """Whether it is of scenes, so that pixels were counted and not images."""
        return any(line.name == "iou_r" for line in self.lines)

    @property
    def summary(self) -> tuple[str, str, str]:
        """Statements on the model's answers, its features and the retained classes, computed from the lines."""
        return summarise(self)

    def line(self, name: str, section: Section | None = None) -> Line:
        """The line of a metric; of the features that the head sees unless another section is named."""
        wanted = [section] if section is not None else ["scores", "features"]
        for line in self.lines:
            if line.name == name and line.section in wanted:
                return line
        known = sorted({line.name for line in self.lines if line.section in wanted})
        raise UsageError(f"The report has no {name!r} in {' or '.join(wanted)}; it has {', '.join(known)}.")

    def value(self, name: str, section: Section | None = None) -> float:
        """The unlearned model's value of a metric."""
        return self.line(name, section).unlearned.value

    def values(self) -> dict[str, float]:
        """The unlearned model's value of every metric by name; those of raw features start with ``raw.``."""
        return {_key(line): line.unlearned.value for line in self.lines}

    def compare(self, other: AuditReport) -> Comparison:
        """The differences of another report from this one, metric by metric."""
        theirs = {_key(line): line for line in other.lines}
        mine = {_key(line): line for line in self.lines}
        rows = tuple(
            Difference(
                name=key,
                first=line.unlearned,
                second=theirs[key].unlearned,
                verdicts=(line.verdict, theirs[key].verdict),
            )
            for key, line in mine.items()
            if key in theirs
        )
        return Comparison(
            rows=rows,
            only_first=tuple(key for key in mine if key not in theirs),
            only_second=tuple(key for key in theirs if key not in mine),
            same_data=self.data == other.data,
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything and the summary, ready for JSON; there is no NaN in it."""
        return {**asdict(self), "summary": list(self.summary)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AuditReport:
        """Read what :meth:`to_dict` gave; the summary is computed again, and may be absent."""
        version = data.get("schema_version")
        if not isinstance(version, int):
            raise UsageError("This is no audit report: it has no schema_version.")
        if version > SCHEMA_VERSION:
            raise UsageError(
                f"The report has schema {version}, newer than this pour reads ({SCHEMA_VERSION}); "
                "update pour-unlearning."
            )
        try:
            report = cls(
                data=AuditedData.from_dict(data["data"]),
                models={role: AuditedModel.from_dict(model) for role, model in data["models"].items()},
                settings=dict(data["settings"]),
                lines=tuple(Line.from_dict(line) for line in data["lines"]),
                discrepancies=tuple(Discrepancy.from_dict(entry) for entry in data["discrepancies"]),
                collapse={role: dict(values) for role, values in data["collapse"].items()},
                answers={role: tuple(counts) for role, counts in data["answers"].items()},
                layers=tuple(LayerMap.from_dict(entry) for entry in data["layers"]),
                relearning=tuple(RelearningCurve.from_dict(curve) for curve in data["relearning"]),
                notes=tuple(data["notes"]),
                pour_version=data["pour_version"],
                schema_version=version,
            )
            # What every reader of a report asks for.
            _ = report.models["unlearned"], report.data.forgotten_names
            if any(len(counts) < len(report.data.classes) for counts in report.answers.values()):
                raise ValueError("answers for fewer classes than there are")
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, PourError) as error:
            raise UsageError(f"The report cannot be read ({error!r}); it was cut or changed by hand.") from error
        return report

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report as JSON, whole or not at all; an earlier one at the same place is replaced."""
        write_text(path, self.to_json() + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> AuditReport:
        """Read a report that :meth:`save` wrote."""
        source = Path(path)
        if not source.is_file():
            raise UsageError(f"There is no file {source}; check the path.")
        try:
            data = json.loads(source.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"{source} is no JSON file ({error}); give a report that pour audit wrote.") from error
        if not isinstance(data, dict):
            raise UsageError(f"{source} holds a {type(data).__name__}, not an audit report.")
        return cls.from_dict(data)

    def __rich__(self) -> RenderableType:
        return report_tables(self)

    def __str__(self) -> str:
        return as_text(report_tables(self))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One metric in two reports."""

    name: str
    first: Reading
    second: Reading
    verdicts: tuple[Verdict, Verdict]

    @property
    def change(self) -> float:
        """The second value less the first."""
        return self.second.value - self.first.value

    @property
    def clear(self) -> bool:
        """Whether each value is outside the other's interval."""
        return not self.first.covers(self.second.value) and not self.second.covers(self.first.value)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two reports side by side; ``print`` shows a table."""

    rows: tuple[Difference, ...]
    only_first: tuple[str, ...] = ()
    """Metrics that the second report does not have."""
    only_second: tuple[str, ...] = ()
    """Metrics that the first report does not have."""
    same_data: bool = True
    """Whether both are of the same classes and the same numbers of images."""

    def __rich__(self) -> RenderableType:
        return comparison_table(self)

    def __str__(self) -> str:
        return as_text(comparison_table(self))


def _key(line: Line) -> str:
    return f"raw.{line.name}" if line.section == "raw" else line.name
