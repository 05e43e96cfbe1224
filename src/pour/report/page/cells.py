"""Numbers, durations, verdicts and intervals as text and drawings of a page."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pour.auditing.report import Line
    from pour.auditing.verdict import Verdict

__all__ = ["VERDICTS", "Sign", "Strip", "count_verdicts", "duration", "number", "strip_of"]


@dataclass(frozen=True)
class Sign:
    """Name of a verdict in style sheets, its icon and its meaning. A colour alone never shows a verdict."""

    slug: str
    icon: str
    meaning: str


VERDICTS: dict[Verdict, Sign] = {
    "within its interval": Sign("within", "✓", "inside the 95 % interval of the retrained model"),
    "better": Sign("better", "+", "outside the interval on the harmless side"),
    "as the original": Sign(
        "original", "=", "outside the interval on the harmful side, but no worse than the original"
    ),
    "leaks more": Sign("leaks", "!", "more of the forgotten class is left than in a retrained model"),
    "destroyed": Sign("destroyed", "✗", "less structure is left than in a retrained model"),
    "no reference": Sign(
        "none", "?", "no retrained model, no second retrained model, or too few images for an interval"
    ),
}


def number(value: float | None) -> str:
    """Return a value with three decimals, or with two digits if it is smaller.

    Examples:
        >>> number(0.12345), number(0.00012), number(12345.6), number(2e-16), number(None)
        ('0.123', '1.2e-04', '12,346', '0.000', '')
    """
    if value is None:
        return ""
    # Values below 1e-9 are rounding errors of zero.
    if 1e-9 < abs(value) < 5e-4:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Return a time with a suitable unit.

    Examples:
        >>> duration(0.0123), duration(75), duration(7260)
        ('12 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count_verdicts(lines: Iterable[Line]) -> dict[Verdict, int]:
    """Return the number of lines with each verdict that occurs, in the order of `VERDICTS`."""
    counts = Counter(line.verdict for line in lines)
    return {verdict: counts[verdict] for verdict in VERDICTS if verdict in counts}


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Places of a line's readings on a strip of width 100, from its smallest to its largest reading."""

    value: float
    whisker: tuple[float, float]
    band: tuple[float, float] | None
    """Interval of the retrained model."""
    original: float | None


def strip_of(line: Line) -> Strip:
    """Return the places of the unlearned value with its interval, the retrained interval and the original value.

    Examples:
        >>> from pour.auditing import Line, Reading
        >>> strip = strip_of(Line(name="acc_r", section="scores", unlearned=Reading(value=0.5, low=0.0, high=1.0)))
        >>> strip.value, strip.whisker, strip.band
        (50.0, (6.0, 94.0), None)
    """
    readings = [reading for reading in (line.unlearned, line.retrained) if reading is not None]
    marks = [mark for reading in readings for mark in (*reading.bounds, reading.value)]
    marks += [] if line.original is None else [line.original.value]
    low, high = min(marks), max(marks)

    def place(mark: float) -> float:
        return 50.0 if high == low else round(6 + 88 * (mark - low) / (high - low), 2)

    intervals = [(place(reading.bounds[0]), place(reading.bounds[1])) for reading in readings]
    return Strip(
        value=place(line.unlearned.value),
        whisker=intervals[0],
        band=None if line.retrained is None else intervals[1],
        original=None if line.original is None else place(line.original.value),
    )
