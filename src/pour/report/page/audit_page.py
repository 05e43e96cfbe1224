"""Write an audit as one HTML file that needs no network and no server."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pour._io import existing_file, refuse_to_overwrite, write_text
from pour.errors import UsageError
from pour.metrics.catalogue import metrics_among
from pour.report.page.cells import count_verdicts
from pour.report.page.feature_map import check_payload
from pour.report.page.rendering import render
from pour.report.pictures import draw_pictures

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from pour.auditing.report import AuditReport
    from pour.report.page.sections import FigureSection

__all__ = ["ReportedRun", "write_report"]

_ANSWERS = 8


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """Audit of another method on the same data, which the reader can select and compare."""

    name: str
    report: AuditReport


def write_report(
    report: AuditReport,
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    runs: Sequence[ReportedRun] = (),
    figures: Sequence[FigureSection] = (),
    command: str | None = None,
    files: Sequence[str | os.PathLike[str]] = (),
    overwrite: bool = True,
) -> Path:
    """Write an audit as one self-contained HTML file, as `pour audit --report` does.

    The page shows the pictures of a report that was made by `pour.audit(..., pictures=True)`. Nothing is computed
    again, so that a report from a file gives the same page. The page loads nothing, and the same input gives the same
    bytes. A file stays as it was if writing fails.

    Args:
        report: Audit of the page.
        path: File of the page.
        name: Name of the audited run; by default its methods.
        runs: Audits of other methods on the same data.
        figures: Further figures of your own, after those of the report.
        command: Command that repeats the audit, if there was one.
        files: Model files whose SHA-256 digests the page contains.
        overwrite: Replace an existing file. If False, raise UsageError if there is one.

    Returns:
        The path.

    Examples:
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
    refuse_to_overwrite(Path(path), overwrite=overwrite)
    methods = ", then ".join(report.models["unlearned"].methods)
    every = [ReportedRun(name=name or methods or "unlearned model", report=report), *runs]
    _check(every)
    lines = [line for run in every for line in run.report.lines]
    measures = [measure for run in every for values in run.report.collapse.values() for measure in values]
    definitions = metrics_among([line.name for line in lines] + measures)
    names = {line.name for line in lines if line.section != "raw"}
    # The only run of a page is called as in its pictures.
    drawn = draw_pictures({run.name: run.report for run in every} if runs else {"unlearned": report})
    embedding = None if report.pictures is None else report.pictures.data.get("map")
    if embedding is not None:
        check_payload(embedding)
    text = render(
        "report.html.j2",
        scripts=("page.js",) if embedding is None else ("page.js", "embedding.js"),
        report=report,
        runs=every,
        answers_of=_answers,
        occurring=count_verdicts(lines),
        glance=[metric for metric in definitions if metric.glance and metric.name in names],
        figures=_grouped([*drawn, *figures]),
        embedding=embedding,
        definitions=definitions,
        command=command,
        files=[_digested(Path(file)) for file in files],
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
            raise UsageError(f"The run {run.name!r} has other data or classes; write a page of its own for it.")


def _answers(report: AuditReport) -> dict[str, Any] | None:
    """Return the most frequent answers to forgotten images by role, with all other classes in the last row."""
    shares = {role: [n / sum(counts) for n in counts] for role, counts in report.answers.items() if sum(counts)}
    if not shares:
        return None
    first: list[Any] = [role for role in ("unlearned", "retrained", "original") if role in shares] or [*shares]
    labels = [label for label in range(len(report.data.classes)) if any(values[label] for values in shares.values())]
    top = sorted(labels, key=lambda label: [-shares[role][label] for role in first])[:_ANSWERS]
    rows = [
        (report.data.classes[label], label in report.data.forgotten, [values[label] for values in shares.values()])
        for label in top
    ]
    rest = [max(0.0, 1 - sum(values[label] for label in top)) for values in shares.values()]
    if max(rest) > 1e-9:
        rows.append(("all others", False, rest))
    return {"roles": list(shares), "rows": rows}


def _grouped(figures: Sequence[FigureSection]) -> list[list[FigureSection]]:
    """Return the figures in order; the figures of a group follow its first figure."""
    groups: dict[object, list[FigureSection]] = {}
    for index, figure in enumerate(figures):
        groups.setdefault(index if figure.group is None else figure.group, []).append(figure)
    return list(groups.values())


def _digested(path: Path) -> dict[str, Any]:
    with existing_file(path).open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}
