"""Make a trained vision model forget classes, and measure how much of them its features still contain."""

from typing import TYPE_CHECKING

from pour._lazy import lazy_names
from pour._version import __version__
from pour.errors import DivergenceError, PourError, PourWarning, UsageError

if TYPE_CHECKING:
    from pour import auditing, bench, data, geometry, inspection, methods, metrics, models, report, training, unlearning
    from pour.auditing.audit import audit
    from pour.auditing.report import AuditReport
    from pour.data.dataset import ImageDataset
    from pour.data.registry import list_datasets, load_dataset, load_segmentation
    from pour.data.splits import Splits
    from pour.geometry.collapse import neural_collapse
    from pour.geometry.eraser import Eraser
    from pour.geometry.fitter import ProjectorFitter
    from pour.geometry.projector import Projector
    from pour.geometry.simplex import simplex_etf
    from pour.inspection.inspect import inspect
    from pour.inspection.inspection import Inspection
    from pour.models.checkpoint import load, save
    from pour.models.clip.zero_shot import zero_shot_classifier
    from pour.models.exporting.export import export
    from pour.models.history import history
    from pour.models.networks.registry import build_model, list_models
    from pour.models.projecting.fold import fold
    from pour.models.projecting.forget import forget
    from pour.report.page.audit_page import write_report
    from pour.unlearning.contract import Method
    from pour.unlearning.registry import list_methods, register
    from pour.unlearning.request import ForgetRequest
    from pour.unlearning.unlearn import unlearn

_HOMES = {
    "auditing": ("AuditReport", "audit"),
    "data": ("ImageDataset", "Splits", "list_datasets", "load_dataset", "load_segmentation"),
    "geometry": ("Projector", "ProjectorFitter", "neural_collapse", "simplex_etf"),
    "geometry.eraser": ("Eraser",),
    "inspection.inspect": ("inspect",),
    "inspection.inspection": ("Inspection",),
    "models": ("build_model", "export", "fold", "forget", "list_models", "load", "save", "zero_shot_classifier"),
    "models.history": ("history",),
    "report": ("write_report",),
    "unlearning": ("ForgetRequest", "Method", "list_methods", "register"),
    "unlearning.unlearn": ("unlearn",),
}

_ROOMS = (
    "auditing",
    "bench",
    "data",
    "geometry",
    "inspection",
    "methods",
    "metrics",
    "models",
    "report",
    "training",
    "unlearning",
)

__all__ = [
    "AuditReport",
    "DivergenceError",
    "Eraser",
    "ForgetRequest",
    "ImageDataset",
    "Inspection",
    "Method",
    "PourError",
    "PourWarning",
    "Projector",
    "ProjectorFitter",
    "Splits",
    "UsageError",
    "__version__",
    "audit",
    "auditing",
    "bench",
    "build_model",
    "data",
    "export",
    "fold",
    "forget",
    "geometry",
    "history",
    "inspect",
    "inspection",
    "list_datasets",
    "list_methods",
    "list_models",
    "load",
    "load_dataset",
    "load_segmentation",
    "methods",
    "metrics",
    "models",
    "neural_collapse",
    "register",
    "report",
    "save",
    "simplex_etf",
    "training",
    "unlearn",
    "unlearning",
    "write_report",
    "zero_shot_classifier",
]

__getattr__ = lazy_names("pour", _HOMES, rooms=_ROOMS)


def __dir__() -> list[str]:
    return __all__
