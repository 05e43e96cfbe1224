"""The one loop that training, retraining and every iterative method use."""

from pour.training.frozen_backbone import FrozenBackbone
from pour.training.loop import BatchNormMode, TrainingLog, classification_loss, fit
from pour.training.recipes import RECIPES, Recipe, get_recipe
from pour.training.resume import ResumeFile
from pour.training.run import Precision, Run, resolve_device
from pour.training.tasks.classify import describe_classifier, train_classifier

__all__ = [
    "RECIPES",
    "BatchNormMode",
    "FrozenBackbone",
    "Precision",
    "Recipe",
    "ResumeFile",
    "Run",
    "TrainingLog",
    "classification_loss",
    "describe_classifier",
    "fit",
    "get_recipe",
    "resolve_device",
    "train_classifier",
]
