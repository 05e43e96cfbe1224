"""Skip the tests of exact Wasserstein distances if POT is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

needs_pot = pytest.mark.skipif(find_spec("ot") is None, reason="exact Wasserstein distances need POT")


def marked(names: Iterable[str]) -> list[Any]:
    """Return names of distances as parameters of a test, which skips the exact Wasserstein distances without POT."""
    return [pytest.param(name, marks=needs_pot) if name.startswith("wasserstein") else name for name in names]
