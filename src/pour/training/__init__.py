"""Train networks: tasks, recipes, and the loop that every iterative method uses."""

from pour.training.frozen_backbone import FrozenBackbone
from pour.training.loop import BatchNormMode, TrainingLog, classification_loss, fit
from pour.training.recipes import RECIPES, Recipe, get_recipe
from pour.training.resume import ResumeFile
from pour.training.run import Precision, Run, resolve_device
from pour.training.tasks.task import Rows, Score, Task, find_task, get_task, list_tasks, register_task

__all__ = [
    "RECIPES",
    "BatchNormMode",
    "FrozenBackbone",
    "Precision",
    "Recipe",
    "ResumeFile",
    "Rows",
    "Run",
    "Score",
    "Task",
    "TrainingLog",
    "classification_loss",
    "find_task",
    "fit",
    "get_recipe",
    "get_task",
    "list_tasks",
    "register_task",
    "resolve_device",
]
