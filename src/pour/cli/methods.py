"""pour methods."""

from __future__ import annotations

from rich.text import Text

import pour
from pour._terminal import TerminalTable
from pour.cli.terminal import show

__all__ = ["methods"]


_TEST_BED = (
    "test bed: mean accuracy on the forgotten class / mean change on the other classes, in points, of test images of "
    "six small digit networks, one class forgotten, every option at its default (docs/results/first-call.md)."
)


def methods() -> None:
    """List the methods: the data, cost and paper of each, and its result at its defaults on a test bed."""
    columns = ["method", "needs", "cost", "test bed", "paper", "what it does"]
    table = TerminalTable(columns, prose=["needs", "cost", "paper", "what it does"])
    for info in pour.list_methods():
        left = "-" if info.first_call is None else str(info.first_call)
        needs = ", ".join(info.needs) or "nothing"
        table.add_row(info.name, needs, str(info.cost), left, info.paper, info.summary)
    show(table)
    show(Text(_TEST_BED))
