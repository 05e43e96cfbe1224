"""List the reports of a folder, and compare several of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pour.auditing.report import AuditReport
from pour.errors import PourError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FoundReport", "ReportFolder"]

# The JSON of an audit with pictures has a few megabytes; larger files contain something else.
_LARGEST = 32 * 2**20


@dataclass(frozen=True, kw_only=True)
class FoundReport:
    """A report in the folder: its page, its JSON, or both."""

    name: str
    """Path relative to the folder without the suffix, with forward slashes."""
    page: str | None
    """Relative path of the HTML file."""
    report: AuditReport | None


class ReportFolder:
    """Reports below a folder. A file is read again only after a change."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise UsageError(f"There is no folder {root}; pass the folder of the reports.")
        self.root = root.resolve()

    def reports(self) -> list[FoundReport]:
        """Return all audits and pages by name, without hidden files and links to other folders."""
        pages: dict[str, str] = {}
        audits: dict[str, AuditReport] = {}
        for path in sorted(self.root.rglob("*")):
            relative = path.relative_to(self.root).as_posix()
            if path.suffix not in (".html", ".json") or self.inside(relative) is None:
                continue
            name = relative.removesuffix(path.suffix)
            if path.suffix == ".html":
                pages[name] = relative
            elif (report := _audit(path)) is not None:
                audits[name] = report
        names = sorted({*pages, *audits})
        return [FoundReport(name=name, page=pages.get(name), report=audits.get(name)) for name in names]

    def inside(self, relative: str) -> Path | None:
        """Return the file of a relative path, or None unless it is a regular file inside the folder."""
        parts = PurePosixPath(relative).parts
        if not parts or relative.startswith("/") or {*relative} & {"\\", "\0", ":"}:
            return None
        if any(part.startswith(".") for part in parts):
            return None
        try:
            # A name that is no text cannot be a link on a page.
            relative.encode()
            path = self.root.joinpath(*parts).resolve()
            return path if path.is_relative_to(self.root) and path.is_file() else None
        except (OSError, RuntimeError, UnicodeEncodeError):
            # The name is too long, or links form a circle.
            return None

    def side_by_side(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of a page that compares the named reports with the first of them."""
        audits = {entry.name: entry.report for entry in self.reports() if entry.report is not None}
        for name in names:
            if name not in audits:
                raise UsageError(f"There is no report {name!r} in this folder.")
        first, *others = names = list(dict.fromkeys(names)) or [""]
        if not others:
            raise UsageError("Choose at least two reports to compare.")
        comparisons = [audits[first].compare(audits[name]) for name in others]
        columns = [{row.name: row for row in comparison.rows} for comparison in comparisons]
        metrics = dict.fromkeys(metric for column in columns for metric in column)
        rows = {metric: [column.get(metric) for column in columns] for metric in metrics}
        return {"names": names, "comparisons": comparisons, "rows": rows}


def _audit(path: Path) -> AuditReport | None:
    """Return the audit in a JSON file, or None for another file, such as a training log."""
    try:
        stat = path.stat()
        return _load(path, stat.st_mtime_ns, stat.st_size) if stat.st_size <= _LARGEST else None
    except OSError:
        return None


@lru_cache(maxsize=1024)
def _load(path: Path, modified: int, size: int) -> AuditReport | None:
    try:
        return AuditReport.load(path)
    except PourError:
        return None
