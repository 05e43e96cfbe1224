"""Opening a model: find its head, tap its features, forget and fold, save and load, build by name.

``history(model)`` is in :mod:`pour.models.history` and at the top level as ``pour.history``.
"""

from pour.models.checkpoint import Header, Projection, load, read_header, save
from pour.models.classes import ClassRequest, resolve_classes
from pour.models.folding import fold
from pour.models.forgetting import Direction, forget
from pour.models.head import Example, Head, evaluating, find_head
from pour.models.history import (
    Architecture,
    Record,
    add_record,
    architecture,
    class_names,
    copy_card,
    set_architecture,
    set_class_names,
)
from pour.models.normalize import Normalize
from pour.models.output import scores_of
from pour.models.pretrained import PRETRAINED, pretrained_weights, write_pretrained
from pour.models.projected import ForgottenLogit, ProjectedHead, masked_score
from pour.models.registry import ModelInfo, build_model, list_models
from pour.models.resnet import ResNet
from pour.models.state import digest, read_state_dict
from pour.models.tap import Features, Tap, extract_features, tap_features, to_unit
from pour.models.wrapper import NormalizedModel

__all__ = [
    "PRETRAINED",
    "Architecture",
    "ClassRequest",
    "Direction",
    "Example",
    "Features",
    "ForgottenLogit",
    "Head",
    "Header",
    "ModelInfo",
    "Normalize",
    "NormalizedModel",
    "ProjectedHead",
    "Projection",
    "Record",
    "ResNet",
    "Tap",
    "add_record",
    "architecture",
    "build_model",
    "class_names",
    "copy_card",
    "digest",
    "evaluating",
    "extract_features",
    "find_head",
    "fold",
    "forget",
    "list_models",
    "load",
    "masked_score",
    "pretrained_weights",
    "read_header",
    "read_state_dict",
    "resolve_classes",
    "save",
    "scores_of",
    "set_architecture",
    "set_class_names",
    "tap_features",
    "to_unit",
    "write_pretrained",
]
