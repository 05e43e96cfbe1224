"""`torchmetrics.Metric`, imported after the torchvision that it imports has been made sound."""

from pour._torchvision import torchvision_works

torchvision_works()

from torchmetrics import Metric  # noqa: E402

__all__ = ["Metric"]
