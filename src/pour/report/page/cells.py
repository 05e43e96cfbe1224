"""Numbers, verdicts and intervals as a page shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pour.auditing.measurement import Reading
    from pour.auditing.report import Line
    from pour.auditing.verdict import Verdict

__all__ = ["VERDICTS", "Sign", "Strip", "count_verdicts", "duration", "number", "strip_of"]


@dataclass(frozen=True)
class Sign:
    """How a verdict is shown: never by colour alone."""

    slug: str
    icon: str
    meaning: str


VERDICTS: dict[Verdict, Sign] = {
    "within its interval": Sign("within", "✓", "no different from a model retrained without the class"),
    "better": Sign("better", "+", "outside the retrained model's interval, on the harmless side"),
    "as the original": Sign("original", "=", "on the harmful side, but no worse than before forgetting"),
    "leaks more": Sign("leaks", "!", "more of the forgotten class is left than in a retrained model"),
    "destroyed": Sign("destroyed", "✗", "less structure than a retrained model has"),
    "no reference": Sign(
        "none", "?", "there is no retrained model, or no second one, or too few images to read it against"
    ),
}


def number(value: float | None) -> str:
    """A value to three decimals, or to two digits where that would hide it.

    Example:
        >>> number(0.12345), number(0.00012), number(12345.6), number(2e-16), number(None)
        ('0.123', '1.2e-04', '12,346', '0.000', '')
    """
    if value is None:
        return ""
    # What is left of a zero after rounding is one.
    if 1e-9 < abs(value) < 5e-4:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3f}"


def duration(seconds: float) -> str:
    """A time in words that one reads at a glance.

    Example:
        >>> duration(0.0123), duration(75), duration(7260)
        ('12 ms', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count_verdicts(lines: Iterable[Line]) -> dict[Verdict, int]:
    """How many lines have each verdict, in the order of :data:`VERDICTS`; those that do not occur are left out."""
    counts = dict.fromkeys(VERDICTS, 0)
    for line in lines:
        counts[line.verdict] += 1
    return {verdict: count for verdict, count in counts.items() if count}


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Where the readings of a line lie on a strip of width 100; the ends are the line's own extremes."""

    value: float
    whisker: tuple[float, float]
    band: tuple[float, float] | None
    """The retrained model's interval."""
    original: float | None


def strip_of(line: Line) -> Strip:
    """Place the unlearned value with its interval, the retrained interval and the original value on one strip.

    Example:
        >>> from pour.auditing import Line, Reading
        >>> strip = strip_of(Line(name="acc_r", section="scores", unlearned=Reading(value=0.5, low=0.0, high=1.0)))
        >>> strip.value, strip.whisker, strip.band
        (50.0, (6.0, 94.0), None)
    """
    readings: list[Reading] = [reading for reading in (line.unlearned, line.retrained) if reading is not None]
    marks = [end for reading in readings for end in (*reading.bounds, reading.value)]
    if line.original is not None:
        marks.append(line.original.value)
    low, high = min(marks), max(marks)

    def place(mark: float) -> float:
        return 50.0 if high == low else round(6 + 88 * (mark - low) / (high - low), 2)

    return Strip(
        value=place(line.unlearned.value),
        whisker=(place(line.unlearned.bounds[0]), place(line.unlearned.bounds[1])),
        band=None if line.retrained is None else (place(line.retrained.bounds[0]), place(line.retrained.bounds[1])),
        original=None if line.original is None else place(line.original.value),
    )
