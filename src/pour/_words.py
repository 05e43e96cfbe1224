"""Format numbers and names for sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["in_words", "percent", "tenths"]

# Shares nearer to 0 or 1 than this would be rounded to 0.0 % or to 100.0 %.
_SMALLEST_SHARE = 0.0005


def in_words(names: Sequence[str]) -> str:
    """Return names as a list with commas, and "and" before the last name.

    Examples:
        >>> in_words(["'cat'"]), in_words(["'cat'", "'dog'", "'ox'"])
        ("'cat'", "'cat', 'dog' and 'ox'")
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def percent(share: float) -> str:
    """Return a share in per cent with one decimal.

    Examples:
        >>> percent(0.9512), percent(-0.0), percent(0.0001), percent(0.9999), percent(1.0)
        ('95.1 %', '0.0 %', 'less than 0.1 %', 'more than 99.9 %', '100.0 %')
    """
    if 0 < share < _SMALLEST_SHARE:
        return "less than 0.1 %"
    if 1 - _SMALLEST_SHARE < share < 1:
        return "more than 99.9 %"
    return f"{tenths(share):.1f} %"


def tenths(share: float) -> float:
    """Return a share in per cent, rounded to one decimal; zero has no sign."""
    return round(100 * share, 1) + 0.0
