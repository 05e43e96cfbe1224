"""pour methods, pour datasets and pour models."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

import pour
from pour.cli.flags import Root
from pour.cli.terminal import show

__all__ = ["datasets", "methods", "models"]


_TEST_BED = (
    "test bed: mean accuracy on the forgotten class / mean change on the other classes, in points, of test images of "
    "six small digit networks, one class forgotten, every option at its default (docs/methods.md)."
)


def methods() -> None:
    """The methods, with the data, cost and paper of each, and their results at their defaults on a test bed."""
    table = Table("method", "needs", "cost", "test bed", "paper", "what it does")
    for info in pour.list_methods():
        left = "-" if info.first_call is None else str(info.first_call)
        needs = ", ".join(info.needs) or "nothing"
        table.add_row(info.name, needs, info.cost, left, info.paper, info.summary)
    show(table)
    show(Text(_TEST_BED))


def datasets(root: Root = None) -> None:
    """The datasets, and which of them are present."""
    from pour.data.registry import data_root

    table = Table("dataset", "task", "present", "licence", "what", title=Text(f"under {data_root(root)}"))
    for status in pour.list_datasets(root):
        info = status.info
        table.add_row(info.name, info.task, "yes" if status.present else "no", info.licence, info.title)
    show(table)


def models() -> None:
    """The architectures that --arch knows."""
    table = Table("arch", "what", "needs")
    for info in pour.list_models():
        table.add_row(info.name, info.summary, "" if info.available else f'pip install "pour-unlearning[{info.extra}]"')
    show(table)
