"""Work on a model: find its head, read its features, forget and fold, save and load, build by name.

`history(model)` is in `pour.models.history` and at the top level as `pour.history`.
"""

from pour.data.classes import ClassRequest, resolve_classes
from pour.models.card import Architecture, architecture, class_names, copy_card, set_architecture, set_class_names
from pour.models.checkpoint import load, save
from pour.models.clip.concepts import TextPart, concept_directions, forget_concepts
from pour.models.clip.dual_encoder import embed_images, find_image_projection, text_encoder
from pour.models.clip.image_encoder import ImageTextEncoder
from pour.models.clip.texts import CAPTIONS, PROMPTS, TextEncoder, TextTable, minilm_encoder, prompt_embeddings
from pour.models.clip.zero_shot import TextHead, ZeroShotClassifier, zero_shot_classifier
from pour.models.exporting.export import Export, export
from pour.models.head import Example, Head, find_head
from pour.models.header import Header, Projection, read_header
from pour.models.history import HistoryEntry, add_entry
from pour.models.modes import evaluating
from pour.models.networks.normalize import Normalize, NormalizedModel
from pour.models.networks.pretrained import PRETRAINED, pretrained_weights, write_pretrained
from pour.models.networks.registry import ModelInfo, build_model, list_models
from pour.models.networks.resnet import ResNet
from pour.models.output import scores_of
from pour.models.projecting.fold import fold
from pour.models.projecting.forget import Direction, forget
from pour.models.projecting.projected_head import ForgottenLogit, ProjectedHead, masked_score
from pour.models.state import digest, read_state_dict
from pour.models.tap import Features, Tap, extract_features, tap_features, to_unit

__all__ = [
    "CAPTIONS",
    "PRETRAINED",
    "PROMPTS",
    "Architecture",
    "ClassRequest",
    "Direction",
    "Example",
    "Export",
    "Features",
    "ForgottenLogit",
    "Head",
    "Header",
    "HistoryEntry",
    "ImageTextEncoder",
    "ModelInfo",
    "Normalize",
    "NormalizedModel",
    "ProjectedHead",
    "Projection",
    "ResNet",
    "Tap",
    "TextEncoder",
    "TextHead",
    "TextPart",
    "TextTable",
    "ZeroShotClassifier",
    "add_entry",
    "architecture",
    "build_model",
    "class_names",
    "concept_directions",
    "copy_card",
    "digest",
    "embed_images",
    "evaluating",
    "export",
    "extract_features",
    "find_head",
    "find_image_projection",
    "fold",
    "forget",
    "forget_concepts",
    "list_models",
    "load",
    "masked_score",
    "minilm_encoder",
    "pretrained_weights",
    "prompt_embeddings",
    "read_header",
    "read_state_dict",
    "resolve_classes",
    "save",
    "scores_of",
    "set_architecture",
    "set_class_names",
    "tap_features",
    "text_encoder",
    "to_unit",
    "write_pretrained",
    "zero_shot_classifier",
]
