"""Make a trained vision model forget classes at the level of its representations, and prove how well it did."""

from typing import TYPE_CHECKING

from pour._lazy import lazy_names
from pour._version import __version__
from pour.errors import DivergenceError, PourError, UsageError

if TYPE_CHECKING:
    from pour import metrics
    from pour.auditing.audit import audit
    from pour.auditing.report import AuditReport
    from pour.data.registry import list_datasets, load_dataset
    from pour.data.splits import Splits
    from pour.geometry.collapse import neural_collapse
    from pour.geometry.fitter import ProjectorFitter
    from pour.geometry.projector import Projector
    from pour.geometry.simplex import simplex_etf
    from pour.methods.contract import Method, list_methods, register
    from pour.methods.request import ForgetRequest
    from pour.methods.unlearning import unlearn
    from pour.models.checkpoint import load, save
    from pour.models.folding import fold
    from pour.models.forgetting import forget
    from pour.models.history import history
    from pour.models.registry import build_model, list_models
    from pour.report.page import write_report

_HOMES = {
    "AuditReport": "pour.auditing",
    "ForgetRequest": "pour.methods",
    "Method": "pour.methods",
    "Projector": "pour.geometry",
    "ProjectorFitter": "pour.geometry",
    "Splits": "pour.data",
    "audit": "pour.auditing",
    "build_model": "pour.models",
    "fold": "pour.models",
    "forget": "pour.models",
    "history": "pour.models.history",
    "list_datasets": "pour.data",
    "list_methods": "pour.methods",
    "list_models": "pour.models",
    "load": "pour.models",
    "load_dataset": "pour.data",
    "neural_collapse": "pour.geometry",
    "register": "pour.methods",
    "save": "pour.models",
    "simplex_etf": "pour.geometry",
    "unlearn": "pour.methods",
    "write_report": "pour.report",
}

__all__ = [
    "AuditReport",
    "DivergenceError",
    "ForgetRequest",
    "Method",
    "PourError",
    "Projector",
    "ProjectorFitter",
    "Splits",
    "UsageError",
    "__version__",
    "audit",
    "build_model",
    "fold",
    "forget",
    "history",
    "list_datasets",
    "list_methods",
    "list_models",
    "load",
    "load_dataset",
    "metrics",
    "neural_collapse",
    "register",
    "save",
    "simplex_etf",
    "unlearn",
    "write_report",
]

_named = lazy_names("pour", _HOMES)


def __getattr__(name: str) -> object:
    if name == "metrics":
        import importlib

        return importlib.import_module("pour.metrics")
    return _named(name)


def __dir__() -> list[str]:
    return __all__
