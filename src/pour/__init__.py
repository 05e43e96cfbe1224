"""Make a trained vision model forget classes at the level of its representations, and prove how well it did."""

from pour._torchvision import torchvision_works
from pour._version import __version__

# torchmetrics imports torchvision where it finds it, so the import must be sound before anything else.
torchvision_works()

__all__ = ["__version__"]
