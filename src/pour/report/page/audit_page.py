"""The page: an audit as one HTML file that a reviewer opens without network or server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import write_text
from pour.errors import UsageError
from pour.metrics.catalogue import SYMBOLS, find_metric, metric_of, metrics_among
from pour.report.page.cells import count_verdicts, strip_of
from pour.report.page.facts import access_of, forgotten_words, reference_words, seconds_of, versions
from pour.report.page.rendering import render

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pour.auditing.report import AuditReport, Line
    from pour.models.history import HistoryEntry
    from pour.report.page.feature_map import Embedding
    from pour.report.page.sections import FigureSection

__all__ = ["ReportedRun", "write_report"]

_SECTIONS = {
    "scores": ("What the model answers", "Accuracy, certainty and, where it was run, relearning."),
    "features": ("Features that the head sees", "What is left of the class in the representation itself."),
    "raw": (
        "Raw features of the encoder",
        "A projector stands before the head of this model; the encoder behind it is measured here.",
    ),
}
# The metrics of the first table.
_GLANCE = (
    "acc_r",
    "acc_f",
    "aus",
    "iou_r",
    "iou_r_rest",
    "iou_f",
    "cka_f_o",
    "rus_o",
    "rus_r",
    "rmia_balanced_accuracy",
    "relearn_f",
)
_ANSWERS = 8


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """Another method on the same data, to switch to and to compare with."""

    name: str
    report: AuditReport
    history: Sequence[HistoryEntry] = ()
    """What :func:`pour.history` says of its model; the time comes from here."""


def write_report(
    report: AuditReport,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    history: Sequence[HistoryEntry] = (),
    runs: Sequence[ReportedRun] = (),
    figures: Sequence[FigureSection] = (),
    embedding: Embedding | None = None,
    command: str | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
) -> Path:
    """Write an audit as one self-contained HTML file, whole or not at all; an earlier one is replaced.

    The page loads nothing from anywhere, and the same input gives the same bytes.

    Args:
        report: the audit in the headline.
        path: where the page goes.
        name: what to call the audited run, by default its methods.
        history: what :func:`pour.history` says of the unlearned model.
        runs: audits of other methods on the same data.
        figures: drawings, in order.
        embedding: the interactive map of features.
        command: the exact command that repeats this, where there was one.
        files: model files whose SHA-256 the page states.

    Returns:
        The path.

    Example:
        >>> import tempfile
        >>> from pour.auditing import AuditedData, AuditedModel, AuditReport, Line, Reading
        >>> model = AuditedModel(digest="0" * 64, architecture=None, methods=("pour-p",), projected=True)
        >>> report = AuditReport(
        ...     data=AuditedData(name="digits", classes=("a", "b", "c"), forgotten=(0,), counts={"test": (1, 2)}),
        ...     models={"unlearned": model}, settings={"seed": 0},
        ...     lines=(Line(name="acc_f", section="scores", unlearned=Reading(value=0.0)),))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     page = write_report(report, f"{folder}/report.html").read_text(encoding="utf-8")
        >>> "Forgetting “a”" in page, "https:" in page
        (True, False)
    """
    main = ReportedRun(name=name or _run_name(report), report=report, history=history)
    everything = [main, *runs]
    _check(everything)
    text = render(
        "report.html.j2",
        scripts=("page.js",) if embedding is None else ("page.js", "embedding.js"),
        **_context(everything, embedding=embedding, figures=figures, command=command, files=files),
    )
    write_text(path, text)
    return Path(path)


def _check(runs: Sequence[ReportedRun]) -> None:
    names = [run.name for run in runs]
    if len(set(names)) < len(names):
        raise UsageError(f"Each run on a page needs its own name, but they are {', '.join(names)}.")
    first = runs[0].report.data
    for run in runs[1:]:
        data = run.report.data
        if (data.name, data.classes, data.forgotten) != (first.name, first.classes, first.forgotten):
            raise UsageError(f"The run {run.name!r} is of other data or classes; write a page of its own for it.")


def _context(
    runs: Sequence[ReportedRun],
    *,
    embedding: Embedding | None,
    figures: Sequence[FigureSection],
    command: str | None,
    files: Sequence[str | os.PathLike[str]],
) -> dict[str, Any]:
    report = runs[0].report
    names = [line.name for run in runs for line in run.report.lines]
    names += [measure for run in runs for values in run.report.collapse.values() for measure in values]
    return {
        "report": report,
        "runs": [_run_context(run) for run in runs],
        "forgotten": forgotten_words(report.data),
        "references": reference_words(report),
        "counts": count_verdicts(report.lines),
        "occurring": count_verdicts(line for run in runs for line in run.report.lines),
        "glance": _glance(runs),
        "figures": _grouped(figures),
        "embedding": None if embedding is None else embedding.payload(report.data),
        "definitions": metrics_among(names),
        "symbols": SYMBOLS,
        "command": command,
        "versions": versions(report),
        "files": [_digested(Path(file)) for file in files],
    }


def _run_context(run: ReportedRun) -> dict[str, Any]:
    report = run.report
    sections = []
    for section, (title, what) in _SECTIONS.items():
        lines = [line for line in report.lines if line.section == section]
        if lines:
            rows = [{"line": line, "strip": strip_of(line)} for line in lines]
            debiased = any(line.unlearned.debiased is not None for line in lines)
            sections.append({"name": section, "title": title, "what": what, "rows": rows, "debiased": debiased})
    return {
        "name": run.name,
        "report": report,
        "history": run.history,
        "access": access_of(report.models["unlearned"].methods),
        "seconds": seconds_of(run.history),
        "counts": count_verdicts(report.lines),
        "sections": sections,
        "answers": _answers(report),
        "collapse": _collapse(report),
    }


def _glance(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """The few metrics to look at first: a row for each run, then the original and the retrained model."""
    found: list[dict[str, Line]] = []
    for run in runs:
        lines = [line for line in run.report.lines if line.section != "raw"]
        found.append({line.name: line for line in lines if line.name in _GLANCE})
    names = [name for name in _GLANCE if any(name in lines for lines in found)]
    references = [
        {
            "name": title,
            "readings": [getattr(found[0].get(name), role, None) for name in names],
        }
        for role, title in (("original", "original model"), ("retrained", "retrained model"))
        if role in runs[0].report.models
    ]
    return {
        "titles": [metric_of(name).label for name in names],
        "lines": [[lines.get(name) for name in names] for lines in found],
        "references": references,
    }


def _answers(report: AuditReport) -> dict[str, Any] | None:
    """The commonest answers to forgotten images: shares by role, the rest of the classes in one row."""
    roles = [role for role, counts in report.answers.items() if sum(counts)]
    if not roles:
        return None
    shares = {role: [count / sum(report.answers[role]) for count in report.answers[role]] for role in roles}
    first = [role for role in ("unlearned", "retrained", "original") if role in shares] or roles
    order = sorted(range(len(report.data.classes)), key=lambda c: [-shares[role][c] for role in first])
    top = [c for c in order if any(shares[role][c] for role in roles)][:_ANSWERS]
    gone = set(report.data.forgotten)
    rows = [(report.data.classes[c], c in gone, [shares[role][c] for role in roles]) for c in top]
    left = [max(0.0, 1 - sum(shares[role][c] for c in top)) for role in roles]
    if max(left) > 1e-9:
        rows.append(("all others", False, left))
    return {"roles": roles, "rows": rows}


def _collapse(report: AuditReport) -> dict[str, Any] | None:
    roles = [role for role, values in report.collapse.items() if values]
    names = list(dict.fromkeys(name for role in roles for name in report.collapse[role] if find_metric(name)))
    return {"roles": roles, "names": names} if roles else None


def _grouped(figures: Sequence[FigureSection]) -> list[list[FigureSection]]:
    """Figures in order, those of one group together where the first of them stands."""
    groups: dict[object, list[FigureSection]] = {}
    for index, figure in enumerate(figures):
        groups.setdefault(index if figure.group is None else figure.group, []).append(figure)
    return list(groups.values())


def _run_name(report: AuditReport) -> str:
    return ", then ".join(report.models["unlearned"].methods) or "unlearned model"


def _digested(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UsageError(f"There is no file {path} to take the digest of; check the path.")
    with path.open("rb") as stream:
        return {
            "name": path.name,
            "size": path.stat().st_size,
            "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
        }
