"""The mathematics: simplex, projector, Neural Collapse, discrepancies and their bound. Tensors in, tensors out."""

from pour.geometry.angles import AngleStatistics, angle_statistics, pairwise_angles, random_centered_rows
from pour.geometry.bound import BoundForm, BoundMetric, DiscrepancyDecomposition, decompose_discrepancy
from pour.geometry.collapse import NeuralCollapse, neural_collapse
from pour.geometry.discrepancy import (
    energy_distance,
    mean_over_pairs,
    median_bandwidth,
    mmd,
    random_slices,
    rbf_kernel,
    sliced_wasserstein,
    wasserstein,
)
from pour.geometry.fitter import ProjectorFitter
from pour.geometry.procrustes import Alignment, procrustes, procrustes_distance
from pour.geometry.projector import Projector
from pour.geometry.simplex import simplex_etf

__all__ = [
    "Alignment",
    "AngleStatistics",
    "BoundForm",
    "BoundMetric",
    "DiscrepancyDecomposition",
    "NeuralCollapse",
    "Projector",
    "ProjectorFitter",
    "angle_statistics",
    "decompose_discrepancy",
    "energy_distance",
    "mean_over_pairs",
    "median_bandwidth",
    "mmd",
    "neural_collapse",
    "pairwise_angles",
    "procrustes",
    "procrustes_distance",
    "random_centered_rows",
    "random_slices",
    "rbf_kernel",
    "simplex_etf",
    "sliced_wasserstein",
    "wasserstein",
]
