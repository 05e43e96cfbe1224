"""pour metrics."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from pour.cli.terminal import show

__all__ = ["metrics"]


def metrics() -> None:
    """The metrics of audits and tables: name, family, better direction, title and meaning."""
    from pour.metrics import list_metrics

    table = Table("metric", "family", "better", "title", "meaning")
    for metric in list_metrics():
        table.add_row(*map(Text, (metric.name, metric.family, metric.better, metric.title, metric.meaning)))
    show(table)
