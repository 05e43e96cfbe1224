"""pour models."""

from __future__ import annotations

import pour
from pour._terminal import TerminalTable
from pour.cli.terminal import show

__all__ = ["models"]


def models() -> None:
    """List the architectures for --arch."""
    table = TerminalTable(["arch", "network", "needs"], prose=["network"])
    for info in pour.list_models():
        table.add_row(info.name, info.summary, "" if info.available else f'pip install "pour-unlearning[{info.extra}]"')
    show(table)
