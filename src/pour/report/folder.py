"""A folder of reports: which there are, and several of them side by side."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pour.auditing.report import AuditReport
from pour.errors import PourError, UsageError
from pour.report.page.cells import count_verdicts
from pour.report.page.facts import forgotten_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pour.auditing.report import Difference

__all__ = ["FoundReport", "ReportFolder"]

# An audit's JSON is a few hundred kilobytes; larger files are something else.
_LARGEST = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class FoundReport:
    """A report in the folder: its page, its JSON, or both."""

    name: str
    """Path relative to the folder without the ending, with forward slashes."""
    page: str | None
    """Relative path of the HTML file."""
    data: str | None
    """Relative path of the JSON file."""
    report: AuditReport | None

    @property
    def what(self) -> str:
        """What was forgotten, where that is known."""
        return "" if self.report is None else forgotten_words(self.report.data)

    @property
    def counts(self) -> dict[Any, int]:
        """How many lines have each verdict."""
        return {} if self.report is None else dict(count_verdicts(self.report.lines))


@dataclass
class ReportFolder:
    """Finds the reports below a folder; a file that was read is read again only after a change."""

    root: Path
    _read: dict[Path, tuple[tuple[int, int], AuditReport | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise UsageError(f"There is no folder {self.root}; give the folder that holds the reports.")
        self.root = self.root.resolve()

    def reports(self) -> list[FoundReport]:
        """Every audit and every page below the folder, by name; hidden files and links that lead out are left out."""
        pages: dict[str, str] = {}
        audits: dict[str, tuple[str, AuditReport]] = {}
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root).as_posix()
            if path.suffix not in (".html", ".json") or self.inside(relative) is None:
                continue
            name = relative.removesuffix(path.suffix)
            if path.suffix == ".html":
                pages[name] = relative
            elif (report := self._audit(path)) is not None:
                audits[name] = (relative, report)
        return [
            FoundReport(
                name=name,
                page=pages.get(name),
                data=audits[name][0] if name in audits else None,
                report=audits[name][1] if name in audits else None,
            )
            for name in sorted({*pages, *audits})
        ]

    def inside(self, relative: str) -> Path | None:
        """The file of a relative path, or None unless it is a plain file that really lies in the folder."""
        parts = PurePosixPath(relative).parts
        if (
            not parts
            or "\\" in relative
            or "\0" in relative
            or any(part.startswith(".") or ":" in part for part in parts)
        ):
            return None
        if relative.startswith("/"):
            return None
        try:
            # A name that is no text cannot be a link on a page.
            relative.encode()
            path = self.root.joinpath(*parts).resolve()
            return path if path.is_relative_to(self.root) and path.is_file() else None
        except (OSError, RuntimeError, UnicodeEncodeError):
            # A name that is too long, or links in a circle.
            return None

    def side_by_side(self, names: Sequence[str]) -> dict[str, Any]:
        """The named reports against the first of them: a row to a metric, a column to a report."""
        known = {found.name: found.report for found in self.reports() if found.report is not None}
        for name in names:
            if name not in known:
                raise UsageError(f"There is no report {name!r} in this folder.")
        if len(set(names)) < 2:
            raise UsageError("Choose at least two reports to compare.")
        names = list(dict.fromkeys(names))
        first = known[names[0]]
        compared = [first.compare(known[name]) for name in names[1:]]
        rows: dict[str, list[Difference | None]] = {}
        for column, comparison in enumerate(compared):
            for difference in comparison.rows:
                rows.setdefault(difference.name, [None] * len(compared))[column] = difference
        return {
            "names": names,
            "reports": [known[name] for name in names],
            "rows": [{"name": name, "cells": cells, "first": _first(cells)} for name, cells in rows.items()],
            "missing": [
                (name, comparison.only_first, comparison.only_second)
                for name, comparison in zip(names[1:], compared, strict=True)
                if comparison.only_first or comparison.only_second
            ],
            "same_data": all(comparison.same_data for comparison in compared),
        }

    def _audit(self, path: Path) -> AuditReport | None:
        """Return the audit in a JSON file, or None for another file, such as a training log."""
        try:
            stat = path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if path not in self._read or self._read[path][0] != stamp:
                self._read[path] = (stamp, AuditReport.load(path) if stat.st_size <= _LARGEST else None)
        except OSError:
            return None
        except PourError:
            self._read[path] = (stamp, None)
        return self._read[path][1]


def _first(cells: Sequence[Difference | None]) -> Difference:
    return next(cell for cell in cells if cell is not None)
