"""Collect the readings of all models, and compare the unlearned model's with the references."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
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
        """Return a line per metric of the unlearned model: section by section, each in the order of :meth:`add`."""
        keys = [key for key, readings in self._readings.items() if "unlearned" in readings]
        return tuple(self._line(*key) for section in get_args(Section) for key in keys if key[0] == section)

    def _line(self, section: Section, name: str) -> Line:
        readings = self._readings[section, name]
        return Line(
            name=name,
            section=section,
            unlearned=readings["unlearned"],
            original=readings.get("original"),
            retrained=_of_all_retrained(readings),
            verdict=self._verdict(section, name),
        )

    def _verdict(self, section: Section, name: str) -> Verdict:
        readings = self._readings[section, name]

        def verdict_on(other: str) -> Verdict | None:
            for place in (section, "scores"):
                if "unlearned" in self._readings.get((place, other), ()):
                    return self._verdict(place, other)
            return None

        retrained, original = _of_all_retrained(readings), readings.get("original")
        return judge(name, readings["unlearned"], retrained, original, verdict_on=verdict_on)


def _of_all_retrained(readings: Mapping[Role, Reading]) -> Reading | None:
    return hull([readings[role] for role in ("retrained", "retrained_second") if role in readings])
