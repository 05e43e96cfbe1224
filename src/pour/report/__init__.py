"""The report: the HTML page of an audit, and the server that shows a folder of them."""

from pour.report.page.audit_page import ReportedRun, write_report
from pour.report.page.sections import FigureSection
from pour.report.server import ReportServer

__all__ = [
    "FigureSection",
    "ReportServer",
    "ReportedRun",
    "write_report",
]
