"""What the methods that train on forget images alone have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pour.methods.iterative import IterativeMethod
from pour.methods.request import Need
from pour.models.classes import resolve_classes
from pour.models.head import find_head
from pour.models.history import class_names, history
from pour.models.tap import extract_features

if TYPE_CHECKING:
    from torch import nn

    from pour.methods.request import Granted
    from pour.training.run import Run

__all__ = ["ForgetOnlyMethod", "forget_accuracy", "forgotten_before", "requested_classes"]


@dataclass(kw_only=True)
class ForgetOnlyMethod(IterativeMethod):
    """A method that trains on forget images; the defaults are those of DELETE's published CIFAR-10 configurations.

    Those use one setting for every method: SGD with momentum 0.9 at a constant 1e-4 (5e-5 on CIFAR-100), batches of
    128, 20 epochs, no weight decay. They let BatchNorm's statistics follow the forget images, which costs every one of
    these methods several points; here they are frozen unless ``batch_norm="train"``.
    """

    needs: ClassVar[tuple[Need, ...]] = ("forget",)
    cost: ClassVar[str] = "20 epochs of forget images"

    epochs: int | None = 20
    """Passes over the forget images; give these or steps."""


def requested_classes(model: nn.Module, request: Granted) -> tuple[int, ...]:
    """The indices of the classes to forget."""
    num_classes = find_head(model).num_classes
    return resolve_classes(request.classes, num_classes=num_classes, class_names=class_names(model))


def forgotten_before(model: nn.Module) -> frozenset[int]:
    """The classes that earlier requests took from ``model``, and that nothing should teach it again."""
    return frozenset(index for record in history(model) for index in record.classes)


def forget_accuracy(model: nn.Module, request: Granted, run: Run) -> float:
    """The share of un-augmented forget images that ``model`` still classifies as their label says."""
    seen = extract_features(model, request.forget.once(run), device=run.torch_device)
    return (seen.scores.argmax(dim=1) == seen.labels).double().mean().item()
