"""Make a trained vision model forget classes at the level of its representations, and prove how well it did."""

from pour._torchvision import torchvision_works
from pour._version import __version__

# torchmetrics imports torchvision where it finds it, so the import must be sound before anything else.
torchvision_works()

from pour import metrics  # noqa: E402
from pour.data import load_dataset  # noqa: E402
from pour.data.registry import list_datasets  # noqa: E402
from pour.data.splits import Splits  # noqa: E402
from pour.errors import DivergenceError, PourError, UsageError  # noqa: E402
from pour.geometry import Projector, ProjectorFitter, neural_collapse, simplex_etf  # noqa: E402
from pour.methods import ForgetRequest, Method, list_methods, register, unlearn  # noqa: E402
from pour.models import build_model, fold, forget, list_models, load, save  # noqa: E402
from pour.models.history import history  # noqa: E402

__all__ = [
    "DivergenceError",
    "ForgetRequest",
    "Method",
    "PourError",
    "Projector",
    "ProjectorFitter",
    "Splits",
    "UsageError",
    "__version__",
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
]
