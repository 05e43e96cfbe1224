"""pour datasets."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

import pour
from pour.cli.flags import Root
from pour.cli.terminal import show

__all__ = ["datasets"]


def datasets(root: Root = None) -> None:
    """The datasets, and which of them are present."""
    from pour.data.registry import data_root

    table = Table("dataset", "task", "present", "licence", "what", title=Text(f"under {data_root(root)}"))
    for status in pour.list_datasets(root):
        info = status.info
        present = "yes" if status.present else "no"
        table.add_row(*map(Text, (info.name, info.task, present, info.licence, info.title)))
    show(table)
