"""From readings of single models and of pairs to the lines of a report."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pour.auditing.measurement import Reading, hull
from pour.auditing.report import Line
from pour.auditing.verdict import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pour.auditing.features import Role
    from pour.auditing.report import Section
    from pour.auditing.verdict import Verdict

__all__ = ["LineBook"]


@dataclass
class LineBook:
    """Collects readings by section, metric and role, and reads each against the retrained models'."""

    _readings: dict[tuple[Section, str], dict[Role, Reading]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, section: Section, role: Role, readings: Mapping[str, Reading]) -> None:
        """Take what was measured of one model."""
        for name, reading in readings.items():
            self._readings[section, name][role] = reading

    def lines(self) -> tuple[Line, ...]:
        """A line for every metric of the unlearned model, section by section, in the order in which they came."""
        verdicts: dict[Section, dict[str, Verdict]] = {"scores": {}, "features": {}, "raw": {}}
        lines: dict[Section, list[Line]] = {"scores": [], "features": [], "raw": []}
        for (section, name), by_role in self._readings.items():
            if "unlearned" not in by_role:
                continue
            reference = hull([by_role[role] for role in ("retrained", "retrained_second") if role in by_role])
            earlier = {**verdicts["scores"], **verdicts[section]}
            verdict = judge(name, by_role["unlearned"], reference, by_role.get("original"), earlier=earlier)
            verdicts[section][name] = verdict
            lines[section].append(
                Line(
                    name=name,
                    section=section,
                    unlearned=by_role["unlearned"],
                    original=by_role.get("original"),
                    retrained=reference,
                    verdict=verdict,
                )
            )
        return (*lines["scores"], *lines["features"], *lines["raw"])
