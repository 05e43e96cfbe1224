"""Show progress: a bar on a terminal, or a line every ten seconds in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from pour._terminal import open_console

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ProgressBar"]

_SECONDS_BETWEEN_LINES = 10.0


class ProgressBar:
    """Shows the progress of some work on standard error.

    Args:
        total: Number of units of work.
        description: Name of the work.
        enabled: False shows nothing.

    Examples:
        >>> with ProgressBar(2, "counting", enabled=False) as bar:
        ...     bar.update(1, note="half")
    """

    def __init__(self, total: int, description: str, *, enabled: bool = True) -> None:
        self._total = total
        self._description = description
        self._enabled = enabled
        self._started = self._last_line = time.monotonic()
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        on_terminal = enabled and sys.stderr.isatty()
        self._bar = Progress(*columns, console=open_console(stderr=True), transient=True, disable=not on_terminal)
        self._task = self._bar.add_task(description, total=total, note="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, done: int, *, note: str = "") -> None:
        """Show that `done` units are finished, with a short note such as the loss."""
        if not self._bar.disable:
            self._bar.update(self._task, completed=done, note=note)
        elif self._enabled and time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            elapsed = self._last_line - self._started
            left = elapsed / done * (self._total - done) if done else float("inf")
            line = f"{self._description} {done}/{self._total} {note} {elapsed:.0f} s, {left:.0f} s left"
            print(" ".join(line.split()), file=sys.stderr, flush=True)
