"""Fixtures of the tests of grids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pour.bench.cell as cells
from pour.bench import CellKey

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the roles of the models and the rows of the cells that this process computes while a test runs."""
    tasks: list[str] = []
    real: Callable[..., None] = cells.CellWorker.do

    def do(self: cells.CellWorker, key: Any) -> None:
        tasks.append(key.row if isinstance(key, CellKey) else key.role)
        real(self, key)

    monkeypatch.setattr(cells.CellWorker, "do", do)
    return tasks
