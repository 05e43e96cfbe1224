"""pour metrics."""

from __future__ import annotations

from pour._terminal import TerminalTable
from pour.cli.terminal import show

__all__ = ["metrics"]


def metrics() -> None:
    """List the metrics of audits and tables: name, family, better direction, title and meaning."""
    from pour.metrics import list_metrics

    table = TerminalTable(["metric", "family", "better", "title", "meaning"], prose=["title", "meaning"])
    for metric in list_metrics():
        table.add_row(metric.name, metric.family, metric.better, metric.title, metric.meaning)
    show(table)
