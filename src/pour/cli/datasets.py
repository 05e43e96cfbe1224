"""pour datasets."""

from __future__ import annotations

import pour
from pour._terminal import TerminalTable
from pour.cli.flags import Root
from pour.cli.terminal import show

__all__ = ["datasets"]


def datasets(root: Root = None) -> None:
    """List the datasets, and which of them are present."""
    from pour.data.registry import data_root

    columns = ["dataset", "task", "present", "licence", "title"]
    table = TerminalTable(columns, f"under {data_root(root)}", prose=["licence", "title"])
    for status in pour.list_datasets(root):
        info = status.info
        present = "yes" if status.present else "no"
        table.add_row(info.name, info.task, present, info.licence, info.title)
    show(table)
