"""The audit: every metric over models and splits, the attacks that train, and the report."""

from pour.auditing.audit import audit
from pour.auditing.distance import Decision, Discrepancy
from pour.auditing.features import Role, Tapped
from pour.auditing.layers import LayerMap
from pour.auditing.measurement import Reading
from pour.auditing.processes import gather_rows, is_first_process, join_processes
from pour.auditing.relearning import Relearning, RelearningCurve, relearn
from pour.auditing.report import AuditedData, AuditedModel, AuditReport, Comparison, Difference, Line
from pour.auditing.tapper import Tapper
from pour.auditing.verdict import Verdict

__all__ = [
    "AuditReport",
    "AuditedData",
    "AuditedModel",
    "Comparison",
    "Decision",
    "Difference",
    "Discrepancy",
    "LayerMap",
    "Line",
    "Reading",
    "Relearning",
    "RelearningCurve",
    "Role",
    "Tapped",
    "Tapper",
    "Verdict",
    "audit",
    "gather_rows",
    "is_first_process",
    "join_processes",
    "relearn",
]
