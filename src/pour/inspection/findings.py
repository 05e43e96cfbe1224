"""Report the findings of the checks before any work, as errors or warnings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour.errors import UsageError, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cause", "Finding", "PreflightError", "settle"]

Cause = Literal["normalisation", "values", "channels", "labels", "untrained", "accuracy", "roles", "same", "seen"]
"""Kind of a finding.

Inputs: `normalisation` (missing, repeated or wrong), `values` (0 to 255), `channels` (wrong order).
Labels: `labels` (in another order). Models: `untrained` (answers by chance), `accuracy` (far below the recorded
accuracy), `roles` (a history contradicts a role), `same` (two models have the same weights), `seen` (the retrained
model recognises the class).
"""


@dataclass(frozen=True)
class Finding:
    """A contradiction between models, data and classes."""

    cause: Cause
    sentence: str
    """The measurement, the likely cause and what to check."""
    certain: bool = True
    """Whether the finding stops the work. Otherwise it is a warning."""


class PreflightError(UsageError):
    """The models, the data and the classes of a call contradict each other."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.sentence} Pass force=True to continue in spite of this.")
        self.finding = finding


def settle(findings: Iterable[Finding], *, force: bool) -> tuple[str, ...]:
    """Return the sentences of the findings and warn of each. Raise PreflightError for a certain one.

    Args:
        findings: Findings, the most important first.
        force: Only warn of certain findings, too.
    """
    listed = list(findings)
    certain = [finding for finding in listed if finding.certain]
    if certain and not force:
        raise PreflightError(certain[0])
    for finding in listed:
        warn(finding.sentence)
    return tuple(finding.sentence for finding in listed)
