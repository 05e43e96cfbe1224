"""Findings of the checks before any work, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pour.errors import UsageError, warn

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Cause", "Finding", "PreflightError", "settle"]

Cause = Literal["normalisation", "values", "channels", "labels", "untrained", "accuracy", "roles", "same", "seen"]
"""Kind of a finding.

Inputs: `normalisation` (missing, repeated or another one), `values` (0 to 255), `channels` (their order).
Labels: `labels` (in another order). Models: `untrained` (answers as by chance), `accuracy` (far below the
recorded one), `roles` (a history contradicts a role), `same` (two models with the same weights), `seen` (the
retrained model knows the class).
"""


@dataclass(frozen=True)
class Finding:
    """A contradiction between models, data and classes."""

    cause: Cause
    sentence: str
    """The measurement, the likely cause and what to check."""
    certain: bool = True
    """Whether it stops the work. Otherwise it is a warning."""


class PreflightError(UsageError):
    """A certain finding."""

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
