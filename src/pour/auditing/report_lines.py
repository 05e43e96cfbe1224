"""Collect the readings of all models, and compare the unlearned model's readings with the references."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, get_args

from pour.auditing.measurement import Reading, hull
from pour.auditing.report import Line, Section
from pour.auditing.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.auditing.features import Role
    from pour.auditing.verdict import Verdict

__all__ = ["LineBook"]


@dataclass
class LineBook:
    """Readings by section, metric and role."""

    _readings: dict[tuple[Section, str], dict[Role, Reading]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, section: Section, role: Role, readings: Mapping[str, Reading]) -> None:
        """Add the readings of one model."""
        for name, reading in readings.items():
            self._readings[section, name][role] = reading

    def lines(self) -> tuple[Line, ...]:
        """Return a line per metric of the unlearned model: section by section, each in the order of `add`."""
        keys = [key for key, readings in self._readings.items() if "unlearned" in readings]
        return tuple(self._line(*key) for section in get_args(Section) for key in keys if key[0] == section)

    def _line(self, section: Section, name: str) -> Line:
        readings = self._readings[section, name]
        unlearned, original = readings["unlearned"], readings.get("original")
        retrained = hull([readings[role] for role in ("retrained", "retrained_second") if role in readings])
        verdict = judge(name, unlearned, retrained, original, verdict_on=partial(self._verdict_on, section))
        return Line(
            name=name, section=section, unlearned=unlearned, original=original, retrained=retrained, verdict=verdict
        )

    def _verdict_on(self, section: Section, name: str) -> Verdict | None:
        """Return the verdict on a metric of the same section, or of the scores; None without such a metric."""
        places: tuple[Section, ...] = (section, "scores")
        measured = [place for place in places if "unlearned" in self._readings.get((place, name), ())]
        return self._line(measured[0], name).verdict if measured else None
