"""Figures of an audit: one function per figure from data to a matplotlib figure, light or dark.

A `draw_` function returns a figure without a window. The figure's label describes it in a sentence. If a figure needs
a computation, a function with the suffix `_data` returns its result.
"""

from pour.report.figures.angles import AngleData, angle_data, centered_class_means, draw_angles
from pour.report.figures.answers import AnswersData, answers_data, draw_answers
from pour.report.figures.attention import GradCamData, draw_gradcam, gradcam_data
from pour.report.figures.changes import AccuracyChange, ChangesData, changes_data, draw_changes
from pour.report.figures.confusion import ConfusionData, confusion_data, draw_confusion
from pour.report.figures.feature_map import EmbeddingData, EmbeddingMethod, draw_embedding, embedding_data
from pour.report.figures.gradcam import MapLayer, find_map_layer, grad_cam
from pour.report.figures.layers import draw_layers
from pour.report.figures.losses import LossCurve, draw_losses, loss_data
from pour.report.figures.masks import SegmentationData, draw_segmentation
from pour.report.figures.relearning import draw_relearning
from pour.report.figures.saving import figure_svg, save_figure
from pour.report.figures.style import Theme
from pour.report.figures.tradeoff import PlaneOf, TradeoffData, TradeoffPoint, draw_tradeoff, tradeoff_data

__all__ = [
    "AccuracyChange",
    "AngleData",
    "AnswersData",
    "ChangesData",
    "ConfusionData",
    "EmbeddingData",
    "EmbeddingMethod",
    "GradCamData",
    "LossCurve",
    "MapLayer",
    "PlaneOf",
    "SegmentationData",
    "Theme",
    "TradeoffData",
    "TradeoffPoint",
    "angle_data",
    "answers_data",
    "centered_class_means",
    "changes_data",
    "confusion_data",
    "draw_angles",
    "draw_answers",
    "draw_changes",
    "draw_confusion",
    "draw_embedding",
    "draw_gradcam",
    "draw_layers",
    "draw_losses",
    "draw_relearning",
    "draw_segmentation",
    "draw_tradeoff",
    "embedding_data",
    "figure_svg",
    "find_map_layer",
    "grad_cam",
    "gradcam_data",
    "loss_data",
    "save_figure",
    "tradeoff_data",
]
