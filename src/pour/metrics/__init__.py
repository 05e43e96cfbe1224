"""Metrics of unlearning: functions of features, scores and labels, and their catalogue."""

from typing import TYPE_CHECKING

from pour._lazy import lazy_names
from pour.metrics.accuracy import split_accuracy
from pour.metrics.catalogue import Metric, list_metrics, metric_of, register_metric
from pour.metrics.cka import linear_cka
from pour.metrics.heatmap import cka_heatmap
from pour.metrics.intervals import Estimate, auc_estimate, balanced_accuracy, wilson
from pour.metrics.logistic import LogisticFit, logistic_regression, standardise
from pour.metrics.membership import Membership, rmia
from pour.metrics.norms import norm_leak
from pour.metrics.predictions import answer_distance, confusion_matrix, retained_uniformity
from pour.metrics.probes import Probe, knn_probe, linear_probe
from pour.metrics.ranking import roc_auc
from pour.metrics.unlearning import aus, rus

if TYPE_CHECKING:
    from pour.metrics.cka_metric import LinearCKA

__all__ = [
    "Estimate",
    "LinearCKA",
    "LogisticFit",
    "Membership",
    "Metric",
    "Probe",
    "answer_distance",
    "auc_estimate",
    "aus",
    "balanced_accuracy",
    "cka_heatmap",
    "confusion_matrix",
    "knn_probe",
    "linear_cka",
    "linear_probe",
    "list_metrics",
    "logistic_regression",
    "metric_of",
    "norm_leak",
    "register_metric",
    "retained_uniformity",
    "rmia",
    "roc_auc",
    "rus",
    "split_accuracy",
    "standardise",
    "wilson",
]

__getattr__ = lazy_names(__name__, {"cka_metric": ["LinearCKA"]})
